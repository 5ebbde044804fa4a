"""The failure rate: what the journal proves, and how a belief follows it."""

from __future__ import annotations

import pytest

from holdfast.events import CheckpointRejected, Event, Progress, Restored, RunEnded, RunStarted
from holdfast.policy.build import build_policy
from holdfast.policy.failures import DAY, HOUR, FailureHistory, FailureRate, Spell, prior_rate


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


def test_time_between_spells_is_no_exposure() -> None:
    spells = (Spell(0, 1000, "planned"), Spell(10**9, 10**9 + 1000, "planned"))
    rate = FailureRate(prior_mtbf=5000.0, half_life=1e12).after(FailureHistory(spells))
    assert rate.exposure == pytest.approx(2000.0)
    assert rate.seen == 0


def test_posterior_mean_is_gamma_poisson() -> None:
    rate = FailureRate(prior_mtbf=10 * HOUR, prior_weight=1.0, half_life=1e15)
    for _ in range(4):
        rate = rate.after_spell(5 * HOUR, failed=True)
    rate = rate.after_spell(20 * HOUR, failed=False)
    assert rate.mean() == pytest.approx((1 + 4) / (10 * HOUR + 40 * HOUR))
    assert rate.mean(running_for=10 * HOUR) == pytest.approx(5 / (60 * HOUR))


def test_old_evidence_fades_with_the_half_life() -> None:
    rate = FailureRate(prior_mtbf=100 * HOUR)
    for _ in range(50):
        rate = rate.after_spell(HOUR, failed=True)
    busy = rate.mean()
    for _ in range(4):
        rate = rate.after_spell(7 * DAY, failed=False)
    assert rate.failures == pytest.approx(50 / 16, rel=0.2)
    assert rate.mean() < busy / 25
    assert rate.seen == 50


def test_fading_does_not_move_a_steady_rate() -> None:
    rate = FailureRate(prior_mtbf=10 * HOUR)
    for _ in range(2000):
        rate = rate.after_spell(10 * HOUR, failed=True)
    assert 1 / rate.mean() == pytest.approx(10 * HOUR, rel=0.03)


def test_the_prior_scales_with_nodes_and_is_pessimistic() -> None:
    assert 1 / prior_rate(1).mean() == pytest.approx(2000 * HOUR)
    assert 1 / prior_rate(2000).mean() == pytest.approx(1 * HOUR)
    published_per_1000_node_days = 6.5  # Meta RSC-1, hardware
    assert prior_rate(1).mean() * 1000 * DAY > published_per_1000_node_days


def test_history_reaches_the_policy_and_its_explanation() -> None:
    spells = tuple(Spell(i * HOUR, i * HOUR + 1800, "failure") for i in range(7))
    policy = build_policy("auto", history=FailureHistory(spells))
    assert policy.explanation().failures_seen == 7


def test_a_given_mtbf_is_a_fact_for_formulas_and_a_guess_for_auto() -> None:
    spells = tuple(Spell(i * HOUR, i * HOUR + 600, "failure") for i in range(20))
    history = FailureHistory(spells)
    fact = FailureRate(prior_mtbf=100 * HOUR, certain=True).after(history)
    guess = FailureRate(prior_mtbf=100 * HOUR).after(history)
    assert 1 / fact.mean() == pytest.approx(100 * HOUR)
    assert 1 / guess.mean() < 6 * HOUR
