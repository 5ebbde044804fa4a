"""What follows a commit, behind it: it is read back, older checkpoints go, the journal is written."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace

from holdfast.checkpoints.find import Found
from holdfast.checkpoints.retain import Ledger, Retention, prune
from holdfast.checkpoints.retention import FLOOR
from holdfast.checkpoints.write import Committed
from holdfast.clock import Clock
from holdfast.engine.read_back import ReadBack
from holdfast.engine.telemetry import Telemetry
from holdfast.errors import HoldfastError, SaveError, StoreError
from holdfast.events import Pruned
from holdfast.format.manifest import FileRecord
from holdfast.format.names import is_of_rank
from holdfast.ranks.line import Line
from holdfast.ranks.team import Team
from holdfast.stores.base import Store

log = logging.getLogger("holdfast")


class Housekeeping:
    """`retention` None: the store looks after itself, as memory does, whose two slots are used in turn. With
    a team, each rank reads back what it wrote, and rank 0 removes."""

    def __init__(
        self,
        store: Store,
        retention: Retention | None,
        clock: Clock,
        telemetry: Telemetry,
        *,
        spare: Callable[[], Collection[str]] = frozenset,
        busy: Callable[[], bool] = lambda: False,
        team: Team | None = None,
    ) -> None:
        self.ledger = Ledger()
        self._store = store
        self._retention = retention
        self._clock = clock
        self._telemetry = telemetry
        # What is still being copied to another tier.
        self._spare = spare
        self._save_in_flight = busy
        self._team = team
        self._votes = ReadBackVotes(team) if team is not None and retention is not None else None
        self._read_back = ReadBack(
            store, clock, busy=self._busy, done=self._was_read, tidy=self._prune,
            rest=self._unread, ranks=self._votes,
        )  # fmt: skip
        self._recent: deque[Found] = deque(maxlen=FLOOR)
        self._read: set[str] = set()

    def after_commit(self, committed: Committed) -> None:
        """The successor is durable, so something older may go. Never raises: too many hurt nobody."""
        self.ledger.committed.add(str(committed.name))
        if self._retention is not None:
            mine = Found(committed.name, replace(committed.manifest, files=self._mine(committed)))
            self._recent.appendleft(mine)
            self._read_back.submit(mine)
        self._telemetry.flush()

    def close(self, limit: float) -> None:
        """Behind the last save. What is not read back within `limit` seconds is left to the next run."""
        self._read_back.close(limit)
        if self._votes is not None:
            self._votes.close()

    def _mine(self, committed: Committed) -> tuple[FileRecord, ...]:
        files = committed.manifest.files
        return files if self._team is None else tuple(f for f in files if is_of_rank(f.name, self._team.rank))

    def _busy(self) -> bool:
        # Where saves follow each other without a gap, it must not stand still for ever: the disk would fill.
        crowd = len(self.ledger.committed) > (self._retention.latest if self._retention else 0) + 4
        return not crowd and self._save_in_flight()

    def _unread(self) -> Found | None:
        """Of the newest two, what has been overtaken: at the end there is time for it."""
        for found in self._recent:
            if str(found.name) not in self._read:
                self._read.add(str(found.name))
                return found
        return None

    def _was_read(self, name: str, whole: bool) -> None:
        self._read.add(name)
        (self.ledger.verified if whole else self.ledger.damaged).add(name)

    def _prune(self) -> None:
        retention = self._retention
        if retention is None or (self._team is not None and not self._team.leads):
            return
        try:
            spare = {*self._spare(), *self._read_back.reading}
            done = prune(
                self._store, retention, self.ledger, retired=self._tell, spare=spare, read_back=False
            )
            if done.refused and len(self.ledger.committed) > retention.latest:
                log.warning("holdfast: nothing was pruned: %s", done.refused)
        except (StoreError, SaveError) as error:
            log.warning("holdfast: pruning failed, older checkpoints stay: %s", error)

    def _tell(self, name: str, why: str) -> None:
        self._telemetry.emit(Pruned(time=self._clock.wall(), name=name, why=why))


# ---- Each rank reads back what it wrote itself of the checkpoint that rank 0 names; two counters tell rank 0
# when all have.

_LIMIT = 10.0


class ReadBackVotes:
    def __init__(self, team: Team) -> None:
        self._team = team
        self.leads = team.leads
        self._line = Line(team.connect().scoped("read back"))
        self._turn = 0

    def announce(self, name: str) -> None:
        """By rank 0: this one is read next."""
        self._turn += 1
        key = f"turn/{self._turn}"
        with contextlib.suppress(HoldfastError):
            self._line.tell(lambda store: store.set(key, name.encode()))

    def wanted(self) -> str | None:
        """What rank 0 has announced since the last call, one at a time."""
        key = f"turn/{self._turn + 1}"
        try:
            said = self._line.ask(lambda store: store.get(key, 0.0) if store.check([key]) else None, _LIMIT)
        except HoldfastError:
            return None
        if said is None:
            return None
        self._turn += 1
        return said.decode()

    def vote(self, name: str, whole: bool) -> None:
        """On every rank. One that does not get through counts as not yet: nothing goes."""
        with contextlib.suppress(HoldfastError):
            self._line.tell(lambda store: store.add(f"{name}/{_word(whole)}", 1))

    def outcome(self, name: str) -> bool | None:
        """For rank 0: whether all ranks found their parts whole; None while some have not said so."""
        try:
            damaged = self._line.ask(lambda store: store.add(f"{name}/{_word(False)}", 0), _LIMIT)
            whole = self._line.ask(lambda store: store.add(f"{name}/{_word(True)}", 0), _LIMIT)
        except HoldfastError:
            return None
        if damaged:
            return False
        if whole < self._team.world:
            return None
        for word in (_word(True), _word(False)):
            self._line.tell(lambda store, key=f"{name}/{word}": store.delete(key))  # type: ignore[misc]
        return True

    def close(self) -> None:
        self._line.close()


def _word(whole: bool) -> str:
    return "whole" if whole else "damaged"
