"""The belief about the failure rate: right from the first minute, whatever the rate is."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from holdfast.policy.belief import FASTEST_SECONDS, RATES, SLOWEST_SECONDS, Belief, Hint, belief_from
from holdfast.policy.build import build_policy
from holdfast.policy.failures import FailureHistory, Spell

HOUR = 3600.0
DAY = 24 * HOUR


def after(*spells: float, belief: Belief | None = None) -> Belief:
    """After failures so many seconds apart."""
    belief = belief or belief_from()
    for seconds in spells:
        belief = belief.after_spell(seconds, failed=True)
    return belief


def mtbf(belief: Belief, running_for: float = 0.0) -> float:
    return 1 / belief.mean(running_for)


def test_before_anything_is_known_all_rates_are_alike() -> None:
    belief = belief_from()
    assert RATES[0] == pytest.approx(1 / SLOWEST_SECONDS)
    assert RATES[-1] == pytest.approx(1 / FASTEST_SECONDS)
    # The mean of a rate that is spread evenly over its logarithm; the grid is a sum, not an integral.
    exactly = (RATES[-1] - RATES[0]) / math.log(RATES[-1] / RATES[0])
    assert belief.mean() == pytest.approx(exactly, rel=0.12)


def test_four_failures_within_two_minutes_are_believed_at_once() -> None:
    belief = after(30, 25, 40, 25)
    assert 20 < mtbf(belief) < 50
    assert belief.words() == f"4 failures in 2 min: expecting one about every {round(mtbf(belief))} s"


@pytest.mark.parametrize("truth", [60.0, 600.0, 4 * HOUR, 2 * DAY, 80 * DAY])
def test_three_failures_are_enough_whatever_the_rate(truth: float) -> None:
    belief = after(0.4 * truth, 1.6 * truth, truth)
    # Once the first minutes after the last failure have passed: they are dangerous by themselves.
    assert truth / 2 < mtbf(belief, 0.2 * truth) < 2.5 * truth


def test_a_quiet_run_is_trusted_more_from_minute_to_minute() -> None:
    belief = belief_from()
    quiet = [mtbf(belief, t) for t in (0, 60, 600, HOUR, DAY, 30 * DAY)]
    assert quiet == sorted(quiet)
    assert quiet[0] < 600
    assert quiet[3] > 3 * HOUR
    assert quiet[5] > 30 * DAY


def test_a_crash_loop_after_a_quiet_month_is_believed_at_its_second_failure() -> None:
    belief = belief_from().after_spell(30 * DAY, failed=True)
    assert mtbf(belief.after_spell(30.0, failed=True)) < 300


def test_a_crash_loop_that_is_over_is_forgotten_within_an_hour() -> None:
    belief = after(*[30.0] * 50)
    assert mtbf(belief) < 60
    assert mtbf(belief, HOUR) > 3 * HOUR
    assert mtbf(after(HOUR, belief=belief), HOUR) > HOUR


def test_the_first_minutes_after_a_failure_count_as_dangerous() -> None:
    belief = after(*[8 * HOUR] * 6)
    assert mtbf(belief) < 3 * HOUR
    assert mtbf(belief, HOUR) == pytest.approx(8 * HOUR, rel=0.2)


def test_a_steady_rate_is_found_and_stays() -> None:
    belief = after(*[10 * HOUR] * 500)
    assert mtbf(belief, HOUR) == pytest.approx(10 * HOUR, rel=0.15)


def test_planned_ends_are_time_survived_and_no_failures() -> None:
    belief = belief_from().after_spell(DAY, failed=False)
    assert belief.seen == 0
    assert belief.mean() == pytest.approx(belief_from().mean(DAY), rel=0.05)


def test_time_between_spells_is_no_evidence() -> None:
    near = FailureHistory((Spell(0, 1000, "planned"), Spell(1000, 2000, "failure")))
    far = FailureHistory((Spell(0, 1000, "planned"), Spell(10**9, 10**9 + 1000, "failure")))
    assert belief_from().after(near) == belief_from().after(far)


def test_a_guess_narrows_the_belief_and_failures_overrule_it() -> None:
    guess = belief_from((Hint(100 * HOUR, "a guess"),))
    assert mtbf(guess, HOUR) > 3 * mtbf(belief_from(), HOUR)
    assert mtbf(guess, 10 * HOUR) == pytest.approx(100 * HOUR, rel=0.4)
    assert mtbf(after(*[600.0] * 4, belief=guess)) < HOUR


def test_a_fact_is_not_learned_over() -> None:
    history = FailureHistory(tuple(Spell(i * HOUR, i * HOUR + 600, "failure") for i in range(20)))
    fact = belief_from(fact=100 * HOUR).after(history)
    assert mtbf(fact, DAY) == 100 * HOUR
    assert fact.words() == "MTBF 4 d 4 h as given"


def test_history_reaches_the_policy_and_its_explanation() -> None:
    spells = tuple(Spell(i * HOUR, i * HOUR + 1800, "failure") for i in range(7))
    said = build_policy("auto", history=FailureHistory(spells)).explanation()
    assert said.failures_seen == 7
    assert said.expects.startswith("last 5 failures in 2 h 30 min: expecting one about every ")


def test_spells_of_no_length_and_of_ten_years_do_no_harm() -> None:
    assert FASTEST_SECONDS <= mtbf(after(*[0.0] * 200)) < 2 * FASTEST_SECONDS
    assert mtbf(after(10 * SLOWEST_SECONDS, 10 * SLOWEST_SECONDS), DAY) > DAY


def test_the_same_spells_give_the_same_bits_in_another_process() -> None:
    program = (
        "from holdfast.policy.belief import belief_from\n"
        "belief = belief_from()\n"
        "for seconds in (31.5, 1e6 / 7, 2.25, 86400.1):\n"
        "    belief = belief.after_spell(seconds, failed=True)\n"
        "print(belief.mean(12345.6).hex())\n"
    )
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    here = after(31.5, 1e6 / 7, 2.25, 86400.1).mean(12345.6)
    assert there.stdout.strip() == here.hex()
