"""Rank 0's side of an agreement: proposes a boundary, collects the answers, gives the verdict."""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, InternalError
from holdfast.ranks.boundary import Agreed, Boundary
from holdfast.ranks.mail import Letter, answer_key, send_to_all
from holdfast.ranks.team import Team, rank_list

log = logging.getLogger("holdfast")
# How long a stop that another rank asks for may lie unread. Only this one rank looks, so this is cheap.
LOOK_SECONDS = 0.05
FIRST_PAUSE, LONGEST_PAUSE = 0.0005, 0.02
CLOSE_SECONDS = 5.0


class Chair:
    def __init__(self, team: Team, clock: Clock, boundary: Boundary, *, limit: float) -> None:
        self.failure: HoldfastError | None = None
        self.silent: tuple[int, ...] = ()
        self.heard_stop = False
        self._world, self._clock, self._boundary, self._limit = team.world, clock, boundary, limit
        self._store = team.connect().scoped("agreement")
        self._deaths = team.connect()
        self._vigil = team.vigil
        self._lead = Lead()
        self._stop: tuple[str, int] | None = None
        self._number = 0
        self._letters = 0
        self._owed: list[str] = []
        self._under_way = False
        self._warned = False
        self._ended = threading.Event()
        self._work: queue.SimpleQueue[tuple[int, Agreed] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="holdfast-ranks", daemon=True)
        self._thread.start()

    def propose(self, kind: str, reason: str, step: int, detail: Mapping[str, Any]) -> None:
        # After silence, nobody is made to wait for the same ranks again: they must be heard of first.
        if (
            self._under_way
            or self._boundary.is_expecting
            or self.silent
            or self.failure
            or self._ended.is_set()
        ):
            return
        self._number += 1
        proposal = Agreed(self._number, kind, step + self._lead.steps, reason, dict(detail))
        self._under_way = True
        self._boundary.expect(proposal)
        self._work.put((step, proposal))

    def request_stop(self, reason: str, exit_code: int) -> None:
        if self._stop is None:
            self._stop = (reason, exit_code)
            self.heard_stop = True
            self._boundary.nudge(True)

    def attend(self, step: int) -> None:
        """The training thread came by: now a stop can be proposed."""
        if self._stop is not None:
            reason, exit_code = self._stop
            self.propose("stop", reason, step, {"exit_code": exit_code})

    def close(self) -> None:
        self._ended.set()
        self._work.put(None)
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                try:
                    work = self._work.get(timeout=LOOK_SECONDS)
                except queue.Empty:
                    self._look()
                    continue
                if work is not None:
                    self._settle(*work)
            self._send(Letter(goodbye=True))
        except HoldfastError as error:
            self.failure = error
        except Exception as error:
            log.exception("holdfast: the agreement of the ranks failed unexpectedly")
            self.failure = InternalError(f"the agreement of the ranks failed: {error!r}")
        finally:
            self._boundary.give_up()
            self._under_way = False
            if self.failure is not None and not self._ended.is_set():
                log.warning("holdfast: the ranks cannot agree on saves any more: %s", self.failure)

    def _settle(self, step: int, proposal: Agreed) -> None:
        self._send(Letter(proposal=proposal))
        answers = self._answers(proposal.number)
        late = [rank for rank, (in_time, _) in answers.items() if not in_time]
        missing = tuple(rank for rank in range(1, self._world) if rank not in answers)
        # Called off because this Run ends: nobody was asked for long enough to be called silent.
        self.silent = () if self._ended.is_set() else missing
        go = not late and not missing
        self._send(Letter(settled=proposal.number, go=go))
        self._boundary.settle(proposal.number, go)
        self._lead.learn(step, [at for _, at in answers.values()])
        self._owed = [answer_key(proposal.number, rank) for rank in self.silent]
        if self.silent and not self._warned:
            self._warned = True
            log.warning(
                "holdfast: %s did not answer within %g s; no %s at step %d, and no other until they do",
                rank_list(self.silent), self._limit, proposal.kind, proposal.step,
            )  # fmt: skip
        self._under_way = False

    def _answers(self, number: int) -> dict[int, tuple[bool, int]]:
        """By rank: whether it was in time, and the step it was at. Those that did not answer are missing."""
        keys = {rank: answer_key(number, rank) for rank in range(1, self._world)}
        begun = self._clock.monotonic()
        pause = FIRST_PAUSE
        while not self._store.check(list(keys.values())) and self._clock.monotonic() < begun + self._limit:
            if self._ended.wait(pause) or (pause == LONGEST_PAUSE and self._somebody_died()):
                break
            pause = min(2 * pause, LONGEST_PAUSE)
        if not self._store.check(list(keys.values())):
            keys = {rank: key for rank, key in keys.items() if self._store.check([key])}
        # They stay until the rank answers the next time: one that was silent is recognised by them.
        found = self._store.get_many(list(keys.values()), self._limit) or []
        return {rank: tuple(json.loads(raw)) for rank, raw in zip(keys, found, strict=True)}

    def _somebody_died(self) -> bool:
        """Whoever else is late is asked again; of the dead there is nothing to wait for."""
        return bool(self._vigil.gone) or self._deaths.check(["gone/any"])

    def _look(self) -> None:
        """Nothing is being settled: has somebody asked for a stop, or come back?"""
        if self._owed and self._store.check(self._owed):
            log.warning("holdfast: %s answered again", rank_list(self.silent))
            self._owed, self.silent, self._warned = [], (), False
            self._send(Letter())
        if self._stop is None and self._store.check(["stop"]):
            asked = self._store.get("stop", self._limit)
            if asked is not None:
                self.request_stop(*json.loads(asked))
                self._send(Letter(heard_stop=True))

    def _send(self, letter: Letter) -> None:
        send_to_all(self._store, self._world, self._letters, replace(letter, silent=self.silent))
        self._letters += 1


# ---- How many steps ahead a boundary must be announced so that every rank hears of it in time.

# So often in a row must half of the lead have been to spare before some of it is given back.
CALM = 8


class Lead:
    """Starts at one step: ranks that wait for each other in every step are never further apart."""

    def __init__(self) -> None:
        self.steps = 1
        self._calm = 0

    def learn(self, proposed_at: int, ranks_at: Sequence[int]) -> None:
        """Where the other ranks were when they heard what rank 0 had proposed at the step `proposed_at`."""
        ahead = max(ranks_at, default=proposed_at) - proposed_at
        if ahead >= self.steps:
            self.steps, self._calm = 2 * ahead, 0
        elif 2 * ahead <= self.steps:
            self._calm += 1
            if self._calm >= CALM and self.steps > 1:
                self.steps, self._calm = self.steps - max(1, self.steps // 4), 0
        else:
            self._calm = 0
