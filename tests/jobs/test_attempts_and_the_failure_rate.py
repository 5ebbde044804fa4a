"""What a supervisor writes into the journal is what the failure rate is learned from."""

from holdfast.events import AttemptEnded, Event, Progress, RunEnded, RunStarted
from holdfast.policy.failures import FailureHistory


def started(time: float) -> Event:
    return RunStarted(time=time, step=0, host="h", pid=1, writer_epoch=1)


def ended(time: float, *, planned: bool, cause: str = "signal") -> Event:
    return AttemptEnded(time=time, attempt=0, cause=cause, detail="", planned=planned, seconds=1.0)


def spells(*events: Event) -> list[tuple[float, float, str]]:
    return [(s.start, s.end, s.ended) for s in FailureHistory.from_events(events).spells]


def test_a_killed_attempt_is_a_failure_that_lasted_until_it_was_killed() -> None:
    alive = Progress(time=10, step=5, epoch=0, step_seconds=1)
    assert spells(started(0), alive, ended(50, planned=False), started(60)) == [
        (0, 50, "failure"), (60, 60, "failure"),
    ]  # fmt: skip


def test_a_hang_counts_once() -> None:
    assert spells(started(0), ended(900, planned=False, cause="hang"), started(901))[:1] == [
        (0, 900, "failure")
    ]


def test_an_end_that_somebody_asked_for_is_no_failure() -> None:
    history = FailureHistory.from_events([started(0), ended(50, planned=True, cause="preemption")])
    assert history.failures == 0


def test_what_the_training_said_itself_is_not_counted_again() -> None:
    stopped = RunEnded(time=40, step=5, how="stopped", why="SIGTERM")
    assert spells(started(0), stopped, ended(41, planned=True)) == [(0, 40, "planned")]
    crashed = RunEnded(time=40, step=5, how="error")
    assert spells(started(0), crashed, ended(41, planned=False)) == [(0, 40, "failure")]


def test_an_attempt_that_died_before_training_began_says_nothing_about_the_machine() -> None:
    assert spells(ended(1, planned=False), ended(2, planned=False)) == []
