"""Who decides where a sampler begins its next pass: the sampler, or the script in front of it?

`sampler.set_epoch(epoch)` and `generator.manual_seed(seed + epoch)` stand in front of the loop, so a resumed
process has called them already when the position comes back. Where a pass was finished, what the script set
is newer than what was saved; what it left alone is older. Told apart by comparing with the beginning of the
run, and by what changed between two passes, while nobody read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class SetByScript:
    """`take` gives what decides a pass, by name."""

    def __init__(self, take: Callable[[], dict[str, Any]]) -> None:
        self._take = take
        self._initial = take()
        self._ended: dict[str, Any] | None = None
        self._seen = False  # two passes, one behind the other
        self._between: set[str] = set()

    def pass_ended(self) -> None:
        self._ended = self._take()

    def pass_begins(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            self._seen = True
            self._between |= _different(ended, self._take())

    def remember(self) -> dict[str, Any]:
        return {"initial": self._initial, "seen": self._seen, "between": sorted(self._between)}

    def put_back(self, kept: dict[str, Any] | None) -> set[str]:
        """What the script has set in this process, which shall stay."""
        if kept is None:  # written before this was kept
            return set()
        self._initial, self._seen = kept["initial"], kept["seen"]
        self._between = set(kept["between"])
        set_now = _different(self._initial, self._take())
        return set_now & self._between if self._seen else set_now


def _different(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {name for name in one if name in other and not _equal(one[name], other[name])}


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (RuntimeError, ValueError):  # arrays in it
        return True
