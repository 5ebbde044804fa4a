"""A commit is unanimous: every rank says what it wrote, rank 0 counts, and all learn the outcome.

    rank 0                              every other rank
    open: this is the place       →     open: where to write
    vote                                vote: what I wrote, or why I could not
    count: all there? decide      ←
    (publishes the manifest)
    announce                      →     outcome

Two things may not happen: a commit that lacks somebody's part, and a rank that takes a committed checkpoint
for a failed one and clears its part away. Hence the decision, a key that is set once: rank 0 sets it to
*commit* before it publishes anything, and a rank that has waited long enough sets it to *given up*. The first
one counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from holdfast.clock import Clock
from holdfast.errors import InternalError, OutcomeUnknown, SaveError, StoreUnavailable
from holdfast.ranks.line import Line
from holdfast.ranks.store import RankStore
from holdfast.ranks.team import Team, rank_list

log = logging.getLogger("holdfast")
T = TypeVar("T")
_YES, _NO = b"+", b"-"
_COMMIT = b"commit"
_SCOPE = "ballot"
# In the place of an outcome: rank 0 died, and whether it had committed is for the decision to say.
_DIED = b"?"


class Ballot:
    """Used by one thread per rank, the one that writes. `save` names a save alike on all ranks, and no two
    saves of a Run alike. No call waits longer than `limit` and a second, `outcome` at most twice that."""

    def __init__(self, team: Team, clock: Clock, *, limit: float) -> None:
        self.team = team
        self._clock = clock
        self._limit = limit
        self._line = Line(team.connect().scoped(_SCOPE))
        self._opened: str | None = None
        self._voted: list[str] = []
        self._to_forget: list[str] = []

    def open(self, save: str, place: bytes | None, *, waits: int = 1) -> bytes:
        """Where to write. Rank 0 gives it, the others wait for it, `waits` times the limit where rank 0 may
        have to wait for somebody else first."""
        if self.team.leads:
            if place is None:
                raise InternalError("rank 0 opens a save without a place to write to")
            value = _YES + place
            self._opened = save
            self._to_forget.append(save)
            self._ask(save, lambda store: store.set(f"{save}/place", value))
            return place
        self.team.vigil.owe("ballot", {0: {f"{_SCOPE}/{save}/place": _NO + b"it has died"}})
        answer = None
        for _ in range(waits):
            if answer is None:
                answer = self._ask(save, lambda store: store.get(f"{save}/place", self._limit))
        if answer is None:
            raise SaveError(
                f"rank 0 did not begin the save {save} within {waits * self._limit:g} s",
                hint="its log says why",
            )
        if answer[:1] == _NO:
            raise SaveError(f"rank 0 could not begin the save {save}: {answer[1:].decode()}")
        return answer[1:]

    def vote(self, save: str, report: bytes | None, error: str | None) -> None:
        """What this rank wrote, or why it could not. Everybody does so once per save, rank 0 too."""
        if (report is None) == (error is None):
            raise InternalError("a vote is either a report or an error")
        value = _YES + report if report is not None else _NO + (error or "").encode()
        self._expect_the_others(save)
        # A report that was begun may have arrived, whatever became of the call.
        kind = SaveError if report is None else OutcomeUnknown
        self._ask(save, lambda store: store.set(f"{save}/vote/{self.team.rank}", value), kind)
        self._voted.append(save)
        if len(self._voted) > 2:
            # Rank 0 has counted that one, or given up on it: it has begun two others since.
            old = self._voted.pop(0)
            self._ask(save, lambda store: store.delete(f"{old}/vote/{self.team.rank}"), kind)

    def _expect_the_others(self, save: str) -> None:
        """What the ranks that are watched owe in this save, to be written in their name if they die. In that
        of rank 0 no outcome: it may have committed."""
        vigil = self.team.vigil
        died = _NO + b"it has died, or its machine is gone"
        debts = {rank: {f"{_SCOPE}/{save}/vote/{rank}": died} for rank in vigil.watched}
        if 0 in debts:
            debts[0][f"{_SCOPE}/{save}/outcome"] = _DIED
        vigil.owe("ballot", debts)

    def count(self, save: str) -> list[bytes]:
        """Rank 0: every rank's report, by rank. From here on only rank 0 can still fail the save."""
        begun = self._clock.monotonic()
        names = [f"{save}/vote/{rank}" for rank in range(self.team.world)]
        votes = self._ask(save, lambda store: store.get_many(names, self._limit))
        if votes is None:
            missing = self._ask(save, lambda store: [r for r, n in enumerate(names) if not store.check([n])])
            raise SaveError(
                f"{rank_list(missing)} did not answer within {self._limit:g} s of the save {save}",
                hint="look there for a process that died or hangs",
            )
        log.debug("holdfast: save %s, all votes after %.3f s", save, self._clock.monotonic() - begun)
        self._forget_before(save)
        failed = {rank: vote[1:].decode() for rank, vote in enumerate(votes) if vote[:1] == _NO}
        if failed:
            raise SaveError(f"{rank_list(sorted(failed))} could not write: {failed[min(failed)]}")
        decision = self._ask(save, lambda store: store.set_first(f"{save}/decision", _COMMIT))
        if decision != _COMMIT:
            raise SaveError(f"the save {save} was given up: {decision.decode()}")
        return [vote[1:] for vote in votes]

    def announce(self, save: str, name: str | None, error: str | None) -> None:
        """Rank 0: the name it was committed under, or why it was not. Also instead of `open`, if there is no
        place. Never raises: what is committed stays so, heard or not."""
        if (name is None) == (error is None):
            raise InternalError("an outcome is either a name or an error")
        value = _YES + name.encode() if name is not None else _NO + (error or "").encode()
        keys = [f"{save}/outcome"]
        if self._opened != save:
            self._to_forget.append(save)
            keys.append(f"{save}/place")
        try:
            self._ask(save, lambda store: store.set_many(dict.fromkeys(keys, value)))
        except SaveError as failure:
            log.warning("holdfast: the other ranks do not hear the outcome of the save %s: %s", save, failure)

    def outcome(self, save: str) -> str:
        """The others: the name it was committed under. `SaveError` if it certainly was not; `OutcomeUnknown`
        if that cannot be told from here: then what was written must stay until a look at the store tells."""
        answer = self._hear_outcome(save)
        if answer is None:
            why = (
                "saw rank 0 die" if 0 in self.team.vigil.gone else f"waited {self._limit:g} s for the outcome"
            )
            mine = f"rank {self.team.rank} {why}".encode()
            decision = self._ask(
                save, lambda store: store.set_first(f"{save}/decision", mine), OutcomeUnknown
            )
            if decision != _COMMIT:
                raise SaveError(
                    f"the save {save} was given up: {decision.decode()}", hint="rank 0's log says why"
                )
            answer = self._hear_outcome(save)
        if answer is None:
            raise OutcomeUnknown(f"rank 0 decided to commit the save {save} and was not heard of again")
        if answer[:1] == _NO:
            raise SaveError(f"the save {save} failed: {answer[1:].decode()}")
        return answer[1:].decode()

    def close(self) -> None:
        self._line.close()

    def _hear_outcome(self, save: str) -> bytes | None:
        heard = self._ask(save, lambda store: store.get(f"{save}/outcome", self._limit), OutcomeUnknown)
        return None if heard == _DIED else heard

    def _forget_before(self, save: str) -> None:
        """Everybody has voted on `save`, so nobody still waits for an earlier one, or decides on it."""
        while self._to_forget and self._to_forget[0] != save:
            old = self._to_forget.pop(0)
            for key in ("place", "decision", "outcome"):
                self._ask(save, lambda store, name=f"{old}/{key}": store.delete(name))  # type: ignore[misc]

    def _ask(self, save: str, what: Callable[[RankStore], T], kind: type[SaveError] = SaveError) -> T:
        try:
            return self._line.ask(what, self._limit)
        except StoreUnavailable as error:
            raise kind(
                f"the ranks cannot agree on the save {save}: {error.message}", hint=error.hint
            ) from error
