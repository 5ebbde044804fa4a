"""Which unfinished places may be cleared away: those whose writer cannot come back to finish them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.format.names import CheckpointName


@dataclass(frozen=True)
class Unfinished:
    """A place without a commit record, as listed. `entries` are the names inside."""

    name: CheckpointName
    entries: tuple[str, ...]
    is_tombstoned: bool
    # None where nobody can know: another machine, another container, a torn claim.
    writer_is_alive: bool | None


def is_abandoned(
    place: Unfinished,
    *,
    my_epoch: int,
    in_progress: frozenset[str],
    unchanged_seconds: float,
    grace_seconds: float,
) -> bool:
    """Pure: the caller says for how long, by its own clock, the place has looked the same."""
    if place.name.writer_epoch > my_epoch or str(place.name) in in_progress:
        return False
    if place.is_tombstoned or place.name.writer_epoch == my_epoch:
        return True
    if place.writer_is_alive is not None:
        return not place.writer_is_alive
    return unchanged_seconds >= grace_seconds


class Watch:
    """Since when each place has looked the same: monotonic seconds of this process, never file times."""

    def __init__(self) -> None:
        self._seen: dict[CheckpointName, tuple[tuple[str, ...], float]] = {}

    def unchanged_seconds(self, places: list[Unfinished], now: float) -> Mapping[CheckpointName, float]:
        seen = {}
        for place in places:
            before = self._seen.get(place.name)
            same = before is not None and before[0] == place.entries
            seen[place.name] = before if before is not None and same else (place.entries, now)
        self._seen = seen
        return {name: now - since for name, (_, since) in seen.items()}
