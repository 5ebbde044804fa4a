"""How much host memory staging may use: measured, not assumed, and respected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.units import format_bytes

# What stays free for the rest of the job: data loader workers, the page cache, the next layer's activations.
RESERVE_SHARE = 0.2

_CGROUPS = "/sys/fs/cgroup"


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
    """Memory that can be taken without swapping, within the limits of this process's control group and of
    every group above it. Schedulers and systemd put the limit on the job's group, not on the process's."""
    read = read or _read
    available = _mem_available(read("/proc/meminfo") or "")
    for limit_path, usage_path, stat_path in _group_files(read("/proc/self/cgroup") or ""):
        limit, usage = _number(read(limit_path)), _number(read(usage_path))
        if limit is not None and usage is not None:
            # What the page cache holds of the group is given back before anybody is killed.
            cached = _field(read(stat_path) or "", "inactive_file", "total_inactive_file")
            available = min(available, max(limit - usage + cached, 0))
    return available


def _group_files(cgroup: str) -> Iterator[tuple[str, str, str]]:
    """Limit, usage and statistics of each memory group that this process is in, the innermost first.

    In a container the path may be one of the host's that cannot be seen from inside; its own group is then
    the root of the hierarchy, which is looked at in any case.
    """
    for line in cgroup.splitlines() or ["0::/"]:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            base, files = _CGROUPS, ("memory.max", "memory.current", "memory.stat")
        elif "memory" in controllers.split(","):
            base = f"{_CGROUPS}/memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            folder = "/".join([base, *parts[:depth]])
            yield (f"{folder}/{files[0]}", f"{folder}/{files[1]}", f"{folder}/{files[2]}")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None


def _field(text: str, *names: str) -> int:
    fields = dict(line.split(None, 1) for line in text.splitlines() if " " in line)
    return next((int(fields[name]) for name in names if fields.get(name, "").strip().isdigit()), 0)


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
