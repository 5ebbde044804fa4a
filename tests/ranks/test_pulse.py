"""A machine that is lost with all its ranks is noticed before the limit; one that comes back counts again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from crew import Child, connect, serve

from holdfast.clock import SystemClock
from holdfast.errors import SaveError, StoreUnavailable
from holdfast.ranks.ballot import Ballot
from holdfast.ranks.join import Place, join
from holdfast.ranks.team import Team
from holdfast.ranks.torch_store import TorchRankStore

# The run's limit: the harness would give up long before.
FOREVER = 600.0


def team(port: int, rank: int) -> Team:
    place = Place(f"host{rank}", machine=f"machine{rank}", process=1)
    store = TorchRankStore(connect(port))
    return join(store, SystemClock(), rank=rank, world=2, place=place, limit=30.0, beat=0.1, silence=3.0)


@contextmanager
def two_machines() -> Iterator[tuple[Team, Child]]:
    """Rank 0 here, and the only rank of another machine: the kernel tells neither of the other."""
    server = serve()

    def other(lines: Any, say: Any) -> None:
        mine = team(server.port, 1)
        ballot = Ballot(mine, SystemClock(), limit=FOREVER)
        say("joined")
        while (word := lines.readline().strip()) != "end":
            if word == "give":
                mine.gather("numbers", b"1", FOREVER)
            else:
                ballot.open(word, None)
                ballot.vote(word, b"1", None)
                ballot.outcome(word)
            say("done")
        ballot.close()
        mine.close()
        say("closed")

    child = Child(other)
    here = team(server.port, 0)
    try:
        assert child.hear() == "joined"
        yield here, child
    finally:
        here.close()
        child.end()


def save(ballot: Ballot, name: str) -> list[bytes]:
    ballot.open(name, b"place")
    ballot.vote(name, b"0", None)
    try:
        votes = ballot.count(name)
    except SaveError as error:
        ballot.announce(name, None, str(error))
        raise
    ballot.announce(name, "committed", None)
    return votes


def test_a_machine_that_is_lost_during_a_save_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with two_machines() as (mine, child):
        ballot = Ballot(mine, SystemClock(), limit=FOREVER)
        child.tell("s/1")
        assert save(ballot, "s/1") == [b"0", b"1"]
        assert child.hear() == "done"
        child.signal(signal.SIGKILL)
        with pytest.raises(SaveError, match="rank 1 could not write: it has died, or its machine is gone"):
            save(ballot, "s/2")
        with pytest.raises(StoreUnavailable, match="rank 1 died"):
            mine.gather("numbers", b"0", FOREVER)
        assert "nothing was heard of rank 1 on host1 for 3 s" in caplog.text
        ballot.close()


def test_a_machine_that_is_heard_again_saves_again(caplog: pytest.LogCaptureFixture) -> None:
    with two_machines() as (mine, child):
        ballot = Ballot(mine, SystemClock(), limit=FOREVER)
        child.signal(signal.SIGSTOP)
        with pytest.raises(SaveError, match="its machine is gone"):
            save(ballot, "s/1")
        child.signal(signal.SIGCONT)
        for _ in range(600):
            if not mine.vigil.gone:
                break
            assert mine._pulse is not None
            mine._pulse._ended.wait(0.1)
        assert "rank 1 on host1 is heard again" in caplog.text
        child.tell("s/2")
        assert save(ballot, "s/2") == [b"0", b"1"]
        assert child.hear() == "done"
        child.tell("end")
        assert child.hear() == "closed"
        with pytest.raises(SaveError, match="rank 1 could not write"):
            save(ballot, "s/3")
        assert caplog.text.count("nothing was heard") == 1, "one that has ended is no surprise"
        ballot.close()
