"""What the journal proves about failures."""

from __future__ import annotations

import pytest

from holdfast.events import CheckpointRejected, Event, Progress, Restored, RunEnded, RunStarted
from holdfast.policy.failures import FailureHistory, Spell


def started(time: float) -> Event:
    return RunStarted(time=time, step=0, host="n1", pid=1, writer_epoch=1)


def progress(time: float) -> Event:
    return Progress(time=time, step=1, epoch=0, step_seconds=0.1)


def ended(time: float, how: str) -> Event:
    return RunEnded(time=time, step=9, how=how)


def test_a_spell_without_an_end_was_a_failure_at_its_last_sign_of_life() -> None:
    history = FailureHistory.from_events([started(100), progress(700), started(5000), progress(5600)])
    assert history.spells == (Spell(100, 700, "failure"), Spell(5000, 5600, "failure"))
    assert history.failures == 2


def test_time_down_before_a_restore_is_no_exposure() -> None:
    """The process that restores says so before it says that it has started."""
    rejected = CheckpointRejected(time=90_000, name="a", why="damaged")
    restored = Restored(time=90_010, step=1, name="b", seconds=1.0, bytes=1)
    history = FailureHistory.from_events([started(100), progress(700), rejected, restored, started(90_020)])
    assert history.spells[0] == Spell(100, 700, "failure")


def test_the_living_spell_is_no_failure() -> None:
    events = [started(100), progress(700), started(5000), progress(5600)]
    history = FailureHistory.from_events(events, still_running=True)
    assert [spell.ended for spell in history.spells] == ["failure", "running"]


@pytest.mark.parametrize(
    ("how", "expected"), [("finished", "planned"), ("stopped", "planned"), ("error", "failure")]
)
def test_planned_ends_do_not_count_as_failures(how: str, expected: str) -> None:
    history = FailureHistory.from_events([started(0), ended(3600, how)])
    assert history.spells == (Spell(0, 3600, expected),)  # type: ignore[arg-type]
