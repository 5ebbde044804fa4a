"""From the nearest tier outward: every target gets its copies, each at its own rhythm and speed."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from holdfast.checkpoints.find import committed
from holdfast.clock import Clock, SystemClock
from holdfast.errors import StoreError
from holdfast.events import Emit
from holdfast.format.manifest import Manifest
from holdfast.tiers.flusher import Flusher, FlushTier
from holdfast.tiers.ladder import Ladder

__all__ = ["Drain", "FlushTier"]
log = logging.getLogger("holdfast")


class Drain:
    """Background copies into outer tiers. `targets` must be tiers of `ladder`, claimed by this process.

    >>> drain = Drain(ladder, [FlushTier("/lustre/run", store, every=10)], emit=emit)
    >>> drain.catch_up()
    >>> drain.committed(name)                 # after every commit in the nearest tier
    >>> behind = drain.stop(limit=60)         # the names of the tiers that lack the newest
    """

    def __init__(
        self,
        ladder: Ladder,
        targets: Sequence[FlushTier],
        *,
        emit: Emit = lambda event: None,
        clock: Clock | None = None,
    ) -> None:
        self._ladder = ladder
        used = clock if clock is not None else SystemClock()
        self.flushers = [
            Flusher(
                tier,
                ladder.without(tier.name),
                emit=emit,
                clock=used,
                spare=lambda: self.needed,
            )
            for tier in targets
        ]

    def catch_up(self) -> None:
        """What an earlier process committed nearby and did not get around to copying."""
        for flusher in self.flushers:
            try:
                there = committed(flusher.tier.target)
                near = committed(self._ladder.without(flusher.tier.name))
            except StoreError as error:
                log.warning("holdfast: cannot see what %s lacks: %s", flusher.tier.name, error)
                continue
            flusher.catch_up(there, near)

    def committed(self, name: str, manifest: Manifest | None = None) -> None:
        """Never blocks, never raises. Without its manifest, only the rhythm decides."""
        for flusher in self.flushers:
            flusher.committed(name, manifest)

    @property
    def needed(self) -> frozenset[str]:
        """Checkpoints that nearer tiers must keep for now: for each target the one that is being copied or
        comes next, and those that its rules keep."""
        return frozenset[str]().union(*(flusher.needed for flusher in self.flushers))

    def wait_idle(self, limit: float) -> bool:
        clock = SystemClock()
        end = clock.monotonic() + limit
        return all(flusher.wait_idle(end - clock.monotonic()) for flusher in self.flushers)

    def stop(self, limit: float) -> list[str]:
        """Bring the newest everywhere within `limit` seconds, then give up. The tiers that lack it.

        What was not finished stays at its target, and whoever comes next goes on with it.
        """
        clock = SystemClock()
        end = clock.monotonic() + limit
        for flusher in self.flushers:
            flusher.begin_stop()
        return [
            flusher.tier.name for flusher in self.flushers if not flusher.end_stop(end - clock.monotonic())
        ]
