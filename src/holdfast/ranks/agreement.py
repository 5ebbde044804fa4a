"""At which step boundary does everybody save, or stop?

Rank 0 announces a step a little ahead. Every other rank's listener answers for its training thread: in time,
or already past it. Only if all are in time does rank 0 say *go*, and nobody passes that step before the
verdict. Ranks that run far apart call it off at first; the lead then grows until it fits.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, InternalError, StoreUnavailable
from holdfast.ranks.boundary import Agreed, Boundary
from holdfast.ranks.chair import Chair
from holdfast.ranks.line import SLICE_SECONDS, Line
from holdfast.ranks.mail import WAKE, Letter, answer_key, box
from holdfast.ranks.team import Team

__all__ = ["Agreed", "Agreement"]


class Agreement:
    """One per rank. Everything that talks does so in a thread; the training thread waits only at an agreed
    step, and there no longer than `limit` and a second."""

    def __init__(self, team: Team, clock: Clock, *, limit: float) -> None:
        self._clock, self._limit = clock, limit
        self._boundary = Boundary()
        self._chair = Chair(team, clock, self._boundary, limit=limit) if team.leads else None
        self._side = self._chair or Member(team, self._boundary)
        self._asked_at: float | None = None
        self._stop_came = False
        self._closed = False

    @property
    def failure(self) -> HoldfastError | None:
        """Why nothing can be agreed on any more: the store is gone, or rank 0 has ended."""
        return self._side.failure

    @property
    def silent(self) -> tuple[int, ...]:
        """Ranks that gave no answer. Until they do, nothing is proposed, so nobody waits for them twice."""
        return tuple(self._side.silent)

    def propose(
        self,
        kind: Literal["save", "stop"],
        reason: str,
        step: int,
        *,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Rank 0, at its boundary `step`: let everybody do so a little later. `detail` is JSON. Never blocks;
        does nothing while something is pending, and may be called off: propose again at a later boundary."""
        if self._chair is None:
            raise InternalError("only rank 0 proposes")
        self._chair.propose(kind, reason, step, detail or {})

    def request_stop(self, reason: str, exit_code: int) -> None:
        """Any rank, any thread but a signal handler: ask everybody to stop. The first one's reason counts; it
        comes back from `at` with the exit code in `detail["exit_code"]`. Never blocks."""
        if self._asked_at is None:
            self._asked_at = self._clock.monotonic()
            self._side.request_stop(reason, exit_code)

    def at(self, step: int) -> Agreed | None:
        """The training thread, at every boundary: what everybody does at this one."""
        if not self._boundary.reach(step):
            return None
        agreed = self._boundary.meet(step, self._limit + SLICE_SECONDS)
        if agreed is not None and agreed.kind == "stop":
            self._stop_came = True
            self._boundary.nudge(False)
        elif agreed is None and self._chair is not None and not self._stop_came:
            self._chair.attend(step)
        return agreed

    def stop_unheard(self, now: float) -> bool:
        """This rank asked for a stop, and no stop of all ranks is to be had: it may stop on its own.

        True when rank 0 did not hear it within `limit`, is gone, or lacks the answer of some rank. A rank 0
        that heard it and is busy with a long step is waited for.
        """
        if self._asked_at is None or self._stop_came or self._boundary.has_agreed("stop"):
            return False
        if self._side.failure is not None:
            return True
        return now - self._asked_at >= self._limit and (not self._side.heard_stop or bool(self._side.silent))

    def close(self) -> None:
        """What is pending is called off; the others hear that rank 0 has ended."""
        if not self._closed:
            self._closed = True
            self._side.close()


# ---- Every other rank's side of an agreement: hears what rank 0 proposes, answers for its training thread.

log = logging.getLogger("holdfast")
# torch writes two lines to the error stream whenever a wait ends without a result, so waits are long, and
# `close` ends them by putting something into the box.
LONG_SECONDS = 86_400.0
CLOSE_SECONDS = 5.0


class Member:
    def __init__(self, team: Team, boundary: Boundary) -> None:
        self.failure: HoldfastError | None = None
        self.silent: Sequence[int] = ()
        self.heard_stop = False
        self._rank, self._boundary = team.rank, boundary
        self._store = team.connect().scoped("agreement")
        self._line = Line(team.connect().scoped("agreement"))
        self._next = 0
        self._answered: int | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-ranks", daemon=True)
        self._thread.start()

    def request_stop(self, reason: str, exit_code: int) -> None:
        asked = json.dumps([reason, exit_code]).encode()
        self._line.tell(lambda store: store.set_first("stop", asked))

    def close(self) -> None:
        self._ended.set()
        # A letter may arrive in this very moment, and the thread then waits for the one after it.
        for _ in range(int(CLOSE_SECONDS / 0.25)):
            if not self._thread.is_alive():
                break
            key = box(self._rank, self._next)
            self._line.tell(lambda store, key=key: store.set(key, WAKE))  # type: ignore[misc]
            self._thread.join(0.25)
        self._line.close()

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                key = box(self._rank, self._next)
                raw = self._store.get(key, LONG_SECONDS)
                if raw is None or raw == WAKE:
                    continue
                self._store.delete(key)
                self._next += 1
                self._hear(Letter.from_bytes(raw))
        except HoldfastError as error:
            self.failure = error
        except Exception as error:
            log.exception("holdfast: the agreement of the ranks failed unexpectedly")
            self.failure = InternalError(f"the agreement of the ranks failed: {error!r}")
        finally:
            self._boundary.give_up()
            if self.failure is not None and not self._ended.is_set():
                log.warning("holdfast: rank 0 cannot be heard any more: %s", self.failure)

    def _hear(self, letter: Letter) -> None:
        self.silent = letter.silent
        self.heard_stop |= letter.heard_stop
        if letter.proposal is not None:
            answer = self._boundary.expect(letter.proposal)
            self._store.set(answer_key(letter.proposal.number, self._rank), json.dumps(answer).encode())
            if self._answered is not None:
                self._store.delete(answer_key(self._answered, self._rank))
            self._answered = letter.proposal.number
        elif letter.settled is not None:
            self._boundary.settle(letter.settled, letter.go)
        elif letter.goodbye:
            # It ended in good order, which is no failure to tell of; but nothing will come from there now.
            self._boundary.give_up()
            self.failure = StoreUnavailable("rank 0 has ended its Run")
            self._ended.set()
