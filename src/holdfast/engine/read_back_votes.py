"""Each rank reads back what it wrote itself of the checkpoint that rank 0 names; two counters tell rank 0
when all have."""

from __future__ import annotations

import contextlib

from holdfast.errors import HoldfastError
from holdfast.ranks.line import Line
from holdfast.ranks.team import Team

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
