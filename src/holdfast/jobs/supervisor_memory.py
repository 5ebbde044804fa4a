"""Whether the kernel killed for lack of memory: its own counters, read before and after an attempt.

Exit code 137 alone proves nothing, because a scheduler and a person kill in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class OomKills:
    """Counters that only grow. `here` is None where the job has no readable memory group of its own."""

    here: int | None
    anywhere: int | None

    def since(self, before: OomKills) -> tuple[int, int]:
        """(in the job's own memory group, on the whole machine)"""
        return _rise(before.here, self.here), _rise(before.anywhere, self.anywhere)


def oom_kills(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> OomKills:
    return OomKills(_in_own_group(proc, groups), _field(proc / "vmstat", "oom_kill"))


def _in_own_group(proc: Path, groups: Path) -> int | None:
    for line in _lines(proc / "self" / "cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        relative = path.lstrip("/")
        if number == "0" and not controllers:  # version 2
            count = _field(groups / relative / "memory.events", "oom_kill")
        elif "memory" in controllers.split(","):  # version 1
            count = _field(groups / "memory" / relative / "memory.oom_control", "oom_kill")
        else:
            continue
        # The root group counts the whole machine.
        if count is not None and relative:
            return count
    return None


def _field(path: Path, name: str) -> int | None:
    for line in _lines(path):
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdecimal():
            return int(value)
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _rise(before: int | None, after: int | None) -> int:
    return max(after - before, 0) if before is not None and after is not None else 0
