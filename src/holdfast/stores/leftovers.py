"""Which unfinished places may be cleared away: those whose writer cannot come back to finish them.

A writer with a lower epoch than ours can never commit again: it looks at the claims right before it does, and
ours is there. That holds once it can see our claim; a network file system may show it an old listing for a
minute. So where nobody can know whether a writer lives (a pod that was replaced, another machine), its places
wait for twice that long, and not for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from holdfast.format.names import CheckpointName

# NFS keeps the attributes of a directory for up to 60 s (acdirmax).
GRACE_SECONDS = 120.0


class Sweepable(Protocol):
    def leftovers(self) -> list[str]: ...

    def abandon(self, name: str) -> None: ...


def sweep(store: Sweepable, swept: list[str] | None = None) -> list[str]:
    """Remove what dead writers left; the names that went, also in `swept` where one cannot be removed."""
    gone = swept if swept is not None else []
    for name in store.leftovers():
        store.abandon(name)
        gone.append(name)
    return gone


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
