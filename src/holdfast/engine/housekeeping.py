"""What follows a commit, on the background worker: older checkpoints go, the journal is written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from holdfast.checkpoints.retain import Ledger, Retention, prune
from holdfast.checkpoints.write import Committed
from holdfast.clock import Clock
from holdfast.engine.telemetry import Telemetry
from holdfast.errors import SaveError, StoreError
from holdfast.events import Pruned
from holdfast.stores.base import Store

log = logging.getLogger("holdfast")


class Housekeeping:
    """`retention` None: the store looks after itself, as memory does, whose two slots are used in turn."""

    def __init__(
        self,
        store: Store,
        retention: Retention | None,
        clock: Clock,
        telemetry: Telemetry,
        *,
        spare: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self.ledger = Ledger()
        self._store = store
        self._retention = retention
        self._clock = clock
        self._telemetry = telemetry
        # What is still being copied to another tier.
        self._spare = spare

    def after_commit(self, committed: Committed) -> None:
        """The successor is durable, so something older may go. Never raises: too many hurt nobody."""
        self.ledger.committed.add(str(committed.name))
        if self._retention is not None:
            self._prune(self._retention)
        self._telemetry.flush()

    def _prune(self, retention: Retention) -> None:
        try:
            done = prune(self._store, retention, self.ledger, retired=self._tell, spare=self._spare())
            if done.refused and len(self.ledger.committed) > retention.latest:
                log.warning("holdfast: nothing was pruned: %s", done.refused)
        except (StoreError, SaveError) as error:
            log.warning("holdfast: pruning failed, older checkpoints stay: %s", error)

    def _tell(self, name: str, why: str) -> None:
        self._telemetry.emit(Pruned(time=self._clock.wall(), name=name, why=why))
