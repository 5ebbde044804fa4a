"""The running window of step times says what sorting it at every step would say."""

import random
import statistics

import pytest

from holdfast.policy.costs import WARM_UP_STEPS, WINDOW, StepTimes


def test_the_running_window_says_what_sorting_it_would_say() -> None:
    chance = random.Random(7)
    times, kept = StepTimes(), []
    for step in range(3000):
        length = chance.choice([0.05, chance.lognormvariate(-3, 0.5), 1e-6])  # some are equal
        times.add(length)
        if step < WARM_UP_STEPS:
            continue
        kept = [*kept, length][-WINDOW:]
        assert times.typical == statistics.median(kept)
        if len(kept) >= 3:
            assert times.mean == pytest.approx(statistics.fmean(kept), rel=1e-6)
            assert times.deviation == pytest.approx(statistics.pstdev(kept), rel=1e-6, abs=1e-8)


def test_a_million_steps_leave_no_rounding_behind() -> None:
    """Added and taken away as floats, these would leave more than the last steps are long."""
    times = StepTimes()
    for length in (0.9, *([0.9] * WARM_UP_STEPS), *([0.7, 0.1] * 50_000), *([1e-6] * WINDOW)):
        times.add(length)
    assert times.mean == pytest.approx(1e-6, rel=1e-9)
    assert times.deviation == 0.0
