"""A warning before the time limit is told from other signals; time that is known is used."""

import os
import signal
from argparse import Namespace
from pathlib import Path

import pytest

from holdfast.cli.running.run_cmd import _deadline
from holdfast.clock import Clock, SystemClock
from holdfast.engine.stopping import Stopping
from holdfast.jobs.environment import WallDeadline
from holdfast.jobs.limit_warning import announces_the_limit
from holdfast.programs.candidate import StopCost


@pytest.mark.parametrize(
    ("number", "left", "warning", "known"),
    [
        (signal.SIGUSR1, 600.0, "600", True),
        (signal.SIGUSR1, 655.0, "600", True),
        (signal.SIGUSR2, 595.0, "600", True),
        (signal.SIGUSR1, 3000.0, "600", False),
        (signal.SIGUSR1, 300.0, "600", False),
        (signal.SIGTERM, 600.0, "600", False),
        (signal.SIGUSR1, 600.0, "", False),
        (signal.SIGUSR1, None, "600", False),
        (None, 600.0, "600", False),
    ],
)
def test_only_the_warning_at_its_moment_announces_the_limit(
    number: int | None, left: float | None, warning: str, known: bool
) -> None:
    assert announces_the_limit(number, left, {"HOLDFAST_WARNING": warning}) == known


def stopping(clock: Clock, *, left: float, planned: bool) -> Stopping:
    asked = Stopping(
        clock, deadline=WallDeadline(clock.wall() + left, "test"), environ={"HOLDFAST_WARNING": "60"}
    )
    asked.last_save_is_planned = lambda: planned
    return asked


@pytest.mark.parametrize(
    ("left", "planned", "stops"), [(60.0, True, False), (60.0, False, True), (5000.0, True, True)]
)
def test_a_training_stops_at_the_warning_only_if_it_does_not_know_better(
    left: float, planned: bool, stops: bool
) -> None:
    asked = stopping(SystemClock(), left=left, planned=planned)
    asked.open()
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert (asked.reason is not None) == stops
        # On top of it, somebody means it.
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked.reason == ("SIGUSR1" if stops and asked.signals.warned_at else "SIGTERM")
    finally:
        asked.close()


def test_the_lead_is_at_most_twice_what_stopping_took_or_ten_seconds(tmp_path: Path) -> None:
    cost = StopCost(tmp_path)
    assert cost.lead(60.0, 120.0) == 10.0, "a minute is not spent on stopping"
    assert cost.lead(7200.0, 120.0) == 120.0
    for took in (0.2, 3.0, 8.0, 30.0):
        StopCost(tmp_path / "none").measured(took)  # nowhere to write it down: no error
        cost.measured(took)
        assert cost.seconds == took
        assert cost.lead(7200.0, 120.0) <= max(2 * took, 10.0)
        assert cost.lead(7200.0, 120.0) >= took
    assert StopCost(tmp_path).seconds == 30.0, "the next job knows it"


def test_time_for_the_hand_over_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the training would use all of its time, and the job would end as a timeout."""
    monkeypatch.setenv("HOLDFAST_DEADLINE", "@2000000000")
    options = Namespace(time_limit=None, deadline=None)
    without = _deadline(options)
    monkeypatch.setenv("HOLDFAST_WARNING", "60")
    within = _deadline(options)
    assert without is not None
    assert within is not None
    assert 0 < without.at - within.at <= 10
