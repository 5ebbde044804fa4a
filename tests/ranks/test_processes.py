"""Ranks that are processes: killed, stopped, and a store that dies or falls silent under them."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from crew import Child, connect, in_threads, serve

from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, OutcomeUnknown, SaveError, StoreUnavailable
from holdfast.ranks.agreement import Agreement
from holdfast.ranks.ballot import Ballot
from holdfast.ranks.join import Place, join
from holdfast.ranks.line import SLICE_SECONDS
from holdfast.ranks.team import Team
from holdfast.ranks.torch_store import TorchRankStore
from holdfast.ranks.torch_team import team_from_torch

LIMIT = 0.5
# No assertion about speed, only that a limit of half a second did not become one of minutes.
FOREVER = 30.0


def team(port: int, rank: int, world: int) -> Team:
    store = TorchRankStore(connect(port))
    return join(store, SystemClock(), rank=rank, world=world, place=Place("a"), limit=FOREVER)


@contextmanager
def children(*works: Callable[[Any, Any], None]) -> Iterator[list[Child]]:
    made = [Child(work) for work in works]
    try:
        yield made
    finally:
        for child in made:
            child.end()


@contextmanager
def store_process() -> Iterator[tuple[Child, int]]:
    """The store in a process of its own, as torchrun's agent has it."""

    def work(lines: Any, say: Any) -> None:
        server = serve()
        say(server.port)
        lines.readline()

    with children(work) as (child,):
        yield child, int(child.hear())


def member(
    port: int, world: int, phases: Callable[[Ballot, str], Iterator[None]]
) -> Callable[[Any, Any], None]:
    """Rank 1 in a process: does one phase of a save per line that it is told."""

    def work(lines: Any, say: Any) -> None:
        ballot = Ballot(team(port, 1, world), SystemClock(), limit=FOREVER)
        say("joined")
        for line in lines:
            for _ in phases(ballot, line.strip()):
                say("done")
                lines.readline()

    return work


def phases_of_a_member(ballot: Ballot, save: str) -> Iterator[None]:
    yield
    ballot.open(save, None)
    yield
    ballot.vote(save, b"theirs", None)
    yield
    ballot.outcome(save)
    yield


@pytest.mark.parametrize(("phase", "commits"), [(1, False), (2, False), (3, True)])
def test_a_rank_killed_in_any_phase_of_a_save_is_never_counted_without_its_vote(
    phase: int, commits: bool
) -> None:
    with store_process() as (_, port), children(member(port, 2, phases_of_a_member)) as (child,):
        mine = team(port, 0, 2)
        ballot = Ballot(mine, SystemClock(), limit=LIMIT)
        assert child.hear() == "joined"
        child.tell("1/0")
        ballot.open("1/0", b"place")
        for _ in range(phase - 1):
            assert child.hear() == "done"
            child.tell("go")
        assert child.hear() == "done"
        child.signal(signal.SIGKILL)
        ballot.vote("1/0", b"mine", None)
        if commits:
            assert ballot.count("1/0") == [b"mine", b"theirs"]
        else:
            with pytest.raises(SaveError, match="rank 1 did not answer"):
                ballot.count("1/0")
        ballot.close()
        mine.close()


def test_a_rank_that_was_stopped_comes_back_to_the_next_save() -> None:
    with store_process() as (_, port), children(member(port, 2, phases_of_a_member)) as (child,):
        mine = team(port, 0, 2)
        ballot = Ballot(mine, SystemClock(), limit=LIMIT)
        assert child.hear() == "joined"
        child.signal(signal.SIGSTOP)
        ballot.open("1/0", b"place")
        ballot.vote("1/0", b"mine", None)
        with pytest.raises(SaveError, match="rank 1 did not answer"):
            ballot.count("1/0")
        ballot.announce("1/0", None, "rank 1 was silent")
        child.signal(signal.SIGCONT)
        child.tell("2/1")
        ballot.open("2/1", b"place")
        for _ in range(3):
            assert child.hear() == "done"
            child.tell("go")
        ballot.vote("2/1", b"mine", None)
        # The child's vote may take longer than this rank's short patience on a busy machine.
        patient = Ballot(mine, SystemClock(), limit=FOREVER)
        assert patient.count("2/1") == [b"mine", b"theirs"]
        for each in (ballot, patient):
            each.close()
        mine.close()


def after(begun: float) -> None:
    assert time.monotonic() - begun < FOREVER


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "falls silent"])
def test_a_store_that_dies_or_falls_silent_is_an_error_and_never_a_hang(fate: signal.Signals) -> None:
    with store_process() as (store, port):
        teams = in_threads([lambda r=r: team(port, r, 2) for r in range(2)])
        assert all(isinstance(one, Team) for one in teams), teams
        ballots = [Ballot(one, SystemClock(), limit=LIMIT) for one in teams]  # type: ignore[arg-type]
        sides = [Agreement(one, SystemClock(), limit=LIMIT) for one in teams]  # type: ignore[arg-type]
        for ballot in ballots:
            ballot.open("1/0", b"place" if ballot.team.leads else None)
        sides[0].propose("save", "due", 1)
        while not sides[1]._boundary.has_agreed("save"):
            time.sleep(0.001)
        store.signal(fate)
        begun = time.monotonic()
        if fate == signal.SIGKILL:
            os.waitpid(store.pid, 0)
        # What was agreed stays agreed on both sides, and a stop that cannot be heard is known as such.
        assert [side.at(2) is not None for side in sides] == [True, True]
        sides[1].request_stop("signal", 1)
        assert sides[1].stop_unheard(time.monotonic() + LIMIT)
        # A vote may be in the socket's buffer: only the outcome tells that nobody heard it.
        with suppress(OutcomeUnknown):
            ballots[1].vote("1/0", b"theirs", None)
        with pytest.raises(OutcomeUnknown):
            ballots[1].outcome("1/0")
        with pytest.raises(SaveError):
            ballots[0].count("1/0")
        ballots[0].announce("1/0", None, "the store is gone")
        with pytest.raises(StoreUnavailable):
            teams[1].share("plan", None, LIMIT)  # type: ignore[union-attr]
        sides[0].propose("save", "due", 5)
        assert sides[0].at(6) is None
        after(begun)
        if fate == signal.SIGSTOP:
            store.signal(signal.SIGCONT)
        for each in [*sides, *ballots, *teams]:
            each.close()  # type: ignore[union-attr]


def test_rank_0_killed_with_the_store_in_its_process_is_an_error_for_the_others() -> None:
    def leader(lines: Any, say: Any) -> None:
        server = serve()
        say(server.port)
        Ballot(team(server.port, 0, 2), SystemClock(), limit=LIMIT).open("1/0", b"place")
        say("opened")
        lines.readline()

    with children(leader) as (child,):
        mine = team(int(child.hear()), 1, 2)
        ballot = Ballot(mine, SystemClock(), limit=LIMIT)
        side = Agreement(mine, SystemClock(), limit=LIMIT)
        assert child.hear() == "opened"
        assert ballot.open("1/0", None) == b"place"
        ballot.vote("1/0", b"theirs", None)
        child.signal(signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(OutcomeUnknown):
            ballot.outcome("1/0")
        while side.failure is None:
            assert time.monotonic() < begun + FOREVER
            time.sleep(0.01)
        assert isinstance(side.failure, HoldfastError)
        assert side.at(1) is None
        for each in (side, ballot, mine):
            each.close()


def test_a_rank_killed_between_hearing_and_answering_calls_the_save_off() -> None:
    def doomed(lines: Any, say: Any) -> None:
        side = Agreement(team(int(lines.readline()), 1, 2), SystemClock(), limit=FOREVER)
        side._boundary.expect = lambda proposal: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment,method-assign,return-value]
        say("ready")
        lines.readline()

    with store_process() as (_, port), children(doomed) as (child,):
        child.tell(str(port))
        mine = team(port, 0, 2)
        side = Agreement(mine, SystemClock(), limit=LIMIT)
        assert child.hear() == "ready"
        side.propose("save", "due", 1)
        begun = time.monotonic()
        assert side.at(2) is None
        assert side.silent == (1,)
        side.request_stop("signal", 1)
        assert side.stop_unheard(time.monotonic() + LIMIT)
        after(begun + SLICE_SECONDS)
        side.close()
        mine.close()


def test_teams_come_from_torch_distributed_for_one_run_after_the_other() -> None:
    def rank(number: int) -> Callable[[Any, Any], None]:
        def work(lines: Any, say: Any) -> None:
            import torch.distributed as dist

            port = int(lines.readline())
            os.environ.update(GROUP_RANK=str(number), LOCAL_RANK="0")
            dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=3)
            for run in range(3):
                mine = team_from_torch("runs/a", limit=FOREVER)
                assert mine is not None
                assert len(set(mine.nodes)) == 3
                assert mine.local_rank == 0
                word = mine.share("plan", str(run).encode() if mine.leads else None, FOREVER)
                said = mine.gather("facts", word + b"-" + str(number).encode(), FOREVER)
                assert said == [f"{run}-{r}".encode() for r in range(3)], said
                mine.close()
            say("fine")
            lines.readline()

        return work

    with children(*(rank(number) for number in range(3))) as ranks:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for child in ranks:
            child.tell(str(port))
        assert [child.hear() for child in ranks] == ["fine"] * 3


def test_ranks_that_met_through_a_file_talk_over_a_store_of_their_own(tmp_path: Path) -> None:
    """torch's FileStore appends every call to its file: asked again and again it would never answer."""
    meeting = tmp_path / "meeting"

    def rank(number: int) -> Callable[[Any, Any], None]:
        def work(lines: Any, say: Any) -> None:
            import torch.distributed as dist

            dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=number, world_size=2)
            size = meeting.stat().st_size
            for _ in range(2):
                mine = team_from_torch("runs/a", limit=FOREVER)
                assert mine is not None
                side = Agreement(mine, SystemClock(), limit=FOREVER)
                assert mine.gather("facts", str(number).encode(), FOREVER) == [b"0", b"1"]
                side.close()
                mine.part()
                mine.close()
            say(f"grew by {meeting.stat().st_size - size}")
            lines.readline()

        return work

    with children(rank(0), rank(1)) as ranks:
        grown = [child.hear() for child in ranks]
    for words in grown:
        assert words.startswith("grew by"), words
        assert int(words.split()[-1]) < 500
