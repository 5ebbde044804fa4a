"""Everybody saves and stops at the same step, or nobody does."""

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from crew import crew, in_threads

from holdfast.clock import SystemClock
from holdfast.errors import InternalError
from holdfast.ranks.agreement import Agreed, Agreement
from holdfast.ranks.team import Team

SHORT = 0.3


@contextmanager
def agreements(world: int, limit: float = 30.0) -> Iterator[list[Agreement]]:
    with crew(world) as teams:
        made = [Agreement(team, SystemClock(), limit=limit) for team in teams]
        yield made
        for agreement in made:
            agreement.close()


def train(
    agreement: Agreement,
    steps: int,
    each: Callable[[int], None],
    *,
    proposes: Callable[[int], bool] = lambda step: False,
) -> list[tuple[str, int, int]]:
    """(kind, number, step) of everything this rank was told to do."""
    done = []
    for step in range(1, steps + 1):
        each(step)
        agreed = agreement.at(step)
        if agreed is not None:
            assert agreed.step == step
            done.append((agreed.kind, agreed.number, step))
            if agreed.kind == "stop":
                break
        if proposes(step):
            agreement.propose("save", "due", step)
    return done


def train_together(made: list[Agreement], steps: int, seed: int, barrier: threading.Barrier | None) -> list:
    luck = [random.Random(seed * 100 + rank) for rank in range(len(made))]

    def each(rank: int) -> Callable[[int], None]:
        def step(number: int) -> None:
            time.sleep(luck[rank].random() * 0.002)
            if barrier is not None:
                barrier.wait(30)

        return step

    def one(rank: int) -> Callable[[], list]:
        proposes = (lambda step: step % 7 == 0) if rank == 0 else (lambda step: False)
        return lambda: train(made[rank], steps, each(rank), proposes=proposes)

    return in_threads([one(rank) for rank in range(len(made))])


@pytest.mark.parametrize("seed", range(3))
def test_ranks_in_step_all_save_at_the_same_steps(seed: int) -> None:
    with agreements(4) as made:
        done = train_together(made, 150, seed, threading.Barrier(4))
        assert done[0], done
        assert all(other == done[0] for other in done), done


@pytest.mark.parametrize("seed", range(3))
def test_ranks_that_run_apart_save_at_the_same_steps_or_not_at_all(seed: int) -> None:
    with agreements(3) as made:
        done = train_together(made, 300, seed, None)
        assert done[0], "the lead never grew enough"
        # A rank that had ended its loop answers for steps that it never reaches.
        shortest = min(len(one) for one in done)
        assert all(one[:shortest] == done[0][:shortest] for one in done), done
        assert shortest > 0


def drive_to(agreement: Agreement, steps: range) -> Agreed | None:
    for step in steps:
        agreed = agreement.at(step)
        if agreed is not None:
            return agreed
    return None


def until_verdict(agreement: Agreement, limit: float = 10.0) -> None:
    """Rank 0 has settled what it proposed."""
    end = time.monotonic() + limit
    while agreement._chair._under_way and time.monotonic() < end:  # type: ignore[union-attr]
        time.sleep(0.001)


def test_a_rank_that_is_past_the_step_calls_it_off_and_the_next_lead_is_larger() -> None:
    with agreements(2) as (leader, other):
        drive_to(other, range(1, 6))
        drive_to(leader, range(1, 2))
        leader.propose("save", "due", 1)
        until_verdict(leader)
        assert drive_to(leader, range(2, 4)) is None
        leader.propose("save", "due", 3)
        until_verdict(leader)
        agreed = drive_to(leader, range(4, 30))
        assert agreed is not None
        assert agreed.step > 5
        assert drive_to(other, range(6, 30)) == agreed


def test_a_stop_asked_of_one_rank_reaches_all_at_one_step() -> None:
    with agreements(4) as made:
        barrier = threading.Barrier(4)

        def one(rank: int) -> Callable[[], Agreed | None]:
            def loop() -> Agreed | None:
                for step in range(1, 20_000):
                    barrier.wait(30)
                    if rank == 2 and step == 5:
                        made[2].request_stop("walltime", 75)
                    if (agreed := made[rank].at(step)) is not None:
                        return agreed
                return None

            return loop

        stops = in_threads([one(rank) for rank in range(4)])
        assert isinstance(stops[0], Agreed), stops
        assert stops[0].kind == "stop"
        assert (stops[0].reason, stops[0].detail) == ("walltime", {"exit_code": 75})
        assert all(stop == stops[0] for stop in stops), stops
        assert not made[2].stop_unheard(time.monotonic() + 1000)


def test_the_first_reason_to_stop_counts_and_details_arrive() -> None:
    with agreements(2) as (leader, other):
        leader.request_stop("signal", 1)
        other.request_stop("walltime", 2)
        assert drive_to(leader, range(1, 2)) is None
        until_verdict(leader)
        mine = drive_to(leader, range(2, 3))
        assert mine is not None
        assert mine.reason == "signal"
        assert drive_to(other, range(1, 3)) == mine


def test_a_rank_that_never_answers_means_no_and_nobody_waits_for_it_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with crew(3) as teams, caplog.at_level(logging.WARNING, "holdfast"), ExitStack() as closing:

        def enter(team: Team, limit: float) -> Agreement:
            agreement = Agreement(team, SystemClock(), limit=limit)
            closing.callback(agreement.close)
            return agreement

        # Rank 0 calls a rank silent; how patient the others are does not matter.
        made = [enter(teams[0], 1.0), enter(teams[1], 30)]
        drive_to(made[0], range(1, 2))
        made[0].propose("save", "due", 1)
        assert in_threads([lambda a=a: drive_to(a, range(2, 4)) for a in made]) == [None, None]
        until_verdict(made[0])
        assert made[0].silent == (2,)
        for step in range(4, 10):
            made[0].propose("save", "due", step)
            assert drive_to(made[0], range(step + 1, step + 2)) is None
        assert sum("did not answer" in record.message for record in caplog.records) == 1
        # The rank was only slow. Once it is heard of again, everything works.
        made.append(enter(teams[2], 30))
        end = time.monotonic() + 10
        while made[0].silent and time.monotonic() < end:
            time.sleep(0.01)
        made[0]._chair._limit = 30  # type: ignore[union-attr]
        made[0].propose("save", "due", 10)
        until_verdict(made[0])
        agreed = [drive_to(a, range(10, 40)) for a in made]
        assert agreed[0] is not None
        assert agreed[1:] == [agreed[0]] * 2


def test_a_rank_that_asks_and_is_not_heard_may_stop_on_its_own() -> None:
    with crew(2) as teams:
        other = Agreement(teams[1], SystemClock(), limit=SHORT)
        assert not other.stop_unheard(time.monotonic() + 1000)
        other.request_stop("signal", 1)
        now = time.monotonic()
        assert not other.stop_unheard(now)
        assert other.stop_unheard(now + SHORT)
        leader = Agreement(teams[0], SystemClock(), limit=SHORT)
        end = time.monotonic() + 10
        while other.stop_unheard(now + 1000) and time.monotonic() < end:
            time.sleep(0.01)
        assert not other.stop_unheard(now + 1000)  # heard; a long step is no silence
        leader.close()
        while not other.stop_unheard(now) and time.monotonic() < end:
            time.sleep(0.01)
        assert other.stop_unheard(now)  # rank 0 has ended
        other.close()


def test_what_is_pending_when_rank_0_ends_is_called_off() -> None:
    with crew(3) as teams:
        made = [Agreement(team, SystemClock(), limit=30) for team in teams[:2]]
        made[0].propose("save", "due", 1)  # rank 2 will not answer
        end = time.monotonic() + 10
        while not made[1]._boundary.is_expecting and time.monotonic() < end:
            time.sleep(0.001)
        made[0].close()
        assert made[1].at(2) is None
        assert made[1].silent == ()
        made[1].close()


def test_only_rank_0_proposes() -> None:
    with agreements(2) as (_, other), pytest.raises(InternalError):
        other.propose("save", "due", 1)


class Counting:
    """Counts what reaches the store."""

    def __init__(self, store: object, calls: "queue.SimpleQueue[str]") -> None:
        self._inner, self._calls = store, calls

    def __getattr__(self, name: str) -> object:
        method = getattr(self._inner, name)
        if name in ("clone", "scoped"):
            return lambda *a: Counting(method(*a), self._calls)

        def counted(*args: object) -> object:
            if threading.current_thread() is threading.main_thread():
                self._calls.put(name)
            return method(*args)

        return counted


def test_the_training_thread_never_talks_to_the_store() -> None:
    calls: queue.SimpleQueue[str] = queue.SimpleQueue()
    with crew(2) as teams:
        counted = [
            Team(Counting(t._store, calls), rank=t.rank, world=2, nodes=t.nodes, local_rank=0)  # type: ignore[arg-type]
            for t in teams
        ]
        made = [Agreement(team, SystemClock(), limit=10) for team in counted]
        assert calls.empty()
        drive_to(made[0], range(1, 100))
        made[0].propose("save", "due", 99)
        made[1].request_stop("signal", 1)
        until_verdict(made[0])
        assert drive_to(made[0], range(100, 101)) is not None
        assert drive_to(made[1], range(90, 101)) is not None
        assert calls.empty()
        for agreement in made:
            agreement.close()
