"""Every other rank's side of an agreement: hears what rank 0 proposes, answers for its training thread."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence

from holdfast.errors import HoldfastError, InternalError, StoreUnavailable
from holdfast.ranks.boundary import Boundary
from holdfast.ranks.line import Line
from holdfast.ranks.mail import WAKE, Letter, answer_key, box
from holdfast.ranks.team import Team

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
