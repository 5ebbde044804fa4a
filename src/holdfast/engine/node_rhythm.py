"""Rank 0's part: which checkpoint the nodes protect next, and which they must not let go meanwhile.

One at a time, until every node has done its share. A newer one does not call it off: where saves come faster
than protecting ends, none would ever be protected.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.clock import Clock
from holdfast.events import CheckpointProtected, Emit, ProtectFailed
from holdfast.redundancy.scheme import Scheme

log = logging.getLogger("holdfast")


class NodeRhythm:
    def __init__(self, scheme: Scheme, clock: Clock) -> None:
        self._scheme = scheme
        self._clock = clock
        self.emit: Emit = lambda event: None
        # The newest that every node has done its share for, and the one that they are at.
        self.safe: str | None = None
        self.pending: str | None = None

    def hear(self, said: Sequence[Mapping[str, Any]]) -> None:
        """What the nodes said with a vote; ranks that act for no node say nothing."""
        nodes = [one for one in said if "protected" in one]
        common = set.intersection(*(set(one["protected"]) for one in nodes)) if nodes else set()
        newest = max(common, default="")
        if newest > (self.safe or ""):
            self.safe = newest
            self.emit(CheckpointProtected(time=self._clock.wall(), name=newest, scheme=str(self._scheme)))
        for one in nodes:
            for name, why in one["trouble"]:
                self.emit(ProtectFailed(time=self._clock.wall(), name=name, node=one["node"], error=why))
                if name == self.pending:
                    self.pending = None
        if self.pending in common or all(one["at"] != self.pending for one in nodes):
            # Done by all; or a node never began, because it did not hear that the save had succeeded.
            self.pending = None

    @property
    def wants_next(self) -> bool:
        return self._scheme.kind != "single" and self.pending is None

    @property
    def spare(self) -> list[str]:
        return [name for name in (self.safe, self.pending) if name is not None]
