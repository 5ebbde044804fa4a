"""How much host memory staging may use: measured, not assumed, and respected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.units import format_bytes

# What stays free for the rest of the job: data loader workers, the page cache, the next layer's activations.
RESERVE_SHARE = 0.2

_CGROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


@dataclass(frozen=True)
class SlotBudget:
    """How many images fit: 2 (a save may start while another is written), 1, or 0 (stream it)."""

    slots: int
    reason: str


def choose_slots(image_bytes: int, available_bytes: int, limit_bytes: int | None = None) -> SlotBudget:
    """Slots for a state of this size. `limit_bytes` is the user's own cap."""
    usable = int(available_bytes * (1 - RESERVE_SHARE))
    whose = f"{format_bytes(available_bytes)} available"
    if limit_bytes is not None and limit_bytes < usable:
        usable, whose = limit_bytes, f"limit {format_bytes(limit_bytes)}"
    size = format_bytes(image_bytes)
    if 2 * image_bytes <= usable:
        return SlotBudget(2, f"two slots of {size} ({whose})")
    if image_bytes <= usable:
        return SlotBudget(
            1, f"one slot of {size}: two do not fit ({whose}); a save waits for the one before it"
        )
    return SlotBudget(0, f"no slot of {size} fits ({whose}); saves are streamed and block training meanwhile")


def available_host_bytes(read: Callable[[str], str | None] | None = None) -> int:
    """Memory that can be taken without swapping, within the limits of this process's control group."""
    read = read or _read
    available = _mem_available(read("/proc/meminfo") or "")
    for limit_path, usage_path in _CGROUP_LIMITS:
        limit, usage = read(limit_path), read(usage_path)
        if limit and usage and limit.strip().isdigit() and usage.strip().isdigit():
            available = min(available, max(int(limit) - int(usage), 0))
    return available


def _mem_available(meminfo: str) -> int:
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:
        return None
