"""The simulator against every exact result there is, and against a slow one that walks step by step."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from pattern_chain import pattern_overhead

from holdfast.plan.failure_models import Poisson, Replayed, Resampled, Weibull
from holdfast.plan.model import Strategy, TierCost, single
from holdfast.plan.monte_carlo import simulate
from holdfast.policy.belief import Hint, belief_from
from holdfast.policy.intervals import effective_training_time_ratio, exact, goodput, young
from holdfast.policy.levels import Level

HOUR, DAY = 3600.0, 86400.0


@pytest.mark.parametrize(
    ("mtbf", "cost", "persist", "restart", "interval", "expected"),
    [
        (3 * HOUR, 60, 0, 600, 1000, 0.84934),
        (3 * HOUR, 2, 120, 600, 300, 0.91638),
        (0.5 * HOUR, 2, 60, 120, 120, 0.86018),
        (24 * HOUR, 300, 0, 600, 7200, 0.91258),
    ],
)
def test_one_level_is_within_half_a_percent_of_dalys_exact_expectation(
    mtbf: float, cost: float, persist: float, restart: float, interval: float, expected: float
) -> None:
    closed = goodput(interval, cost, mtbf, restart, persist)
    assert closed == pytest.approx(expected, abs=6e-6)
    tier = TierCost("fs", 1.0, cost, persist=persist, restart=restart)
    outcome = simulate(single("x", tier, interval), Poisson(mtbf), horizon=90 * DAY)
    assert outcome.goodput == pytest.approx(closed, rel=0.005)
    assert outcome.goodput == pytest.approx(closed, abs=4 * outcome.standard_error)  # and in truth far closer


@pytest.mark.parametrize(("base", "n", "expected"), [(221.5, 13, 0.94546), (300.0, 5, 0.94035)])
def test_two_levels_are_within_half_a_percent_of_the_exact_chain(
    base: float, n: int, expected: float
) -> None:
    mtbf = 3.1 * HOUR
    levels = [Level("node", 2, 0.92 / mtbf, restart=154), Level("site", 30, 0.08 / mtbf, restart=600)]
    chain = 1 / (1 + pattern_overhead(levels, (1, n), base))
    assert chain == pytest.approx(expected, abs=6e-6)
    tiers = (TierCost("node", 0.92, 2, restart=154), TierCost("site", 0.08, 30, restart=600))
    outcome = simulate(Strategy("x", tiers, (base, base * n)), Poisson(mtbf), horizon=90 * DAY)
    assert outcome.goodput == pytest.approx(chain, rel=0.005)
    assert outcome.goodput == pytest.approx(chain, rel=0.0005)


TABLE = [
    ((2, 30), (0.92, 0.08), (153.9, 600), 3.1 * HOUR, 13, 221.5, 0.05768),
    ((0.5, 2), (0.92, 0.08), (153.9, 600), 3.1 * HOUR, 7, 108.9, 0.03182),
    ((2, 30), (0.92, 0.08), (153.9, 600), 0.48 * HOUR, 13, 87.2, 0.22789),
    ((2, 60), (0.93, 0.07), (147.7, 600), 50 * HOUR, 20, 878.9, 0.01248),
    ((3, 600), (0.85, 0.15), (20.1, 900), 6 * HOUR, 34, 387.2, 0.12350),
]


@pytest.mark.parametrize(("costs", "shares", "restarts", "mtbf", "n", "base", "expected"), TABLE)
def test_the_chain_gives_the_exact_overheads_of_the_table(
    costs: tuple[float, float],
    shares: tuple[float, float],
    restarts: tuple[float, float],
    mtbf: float,
    n: int,
    base: float,
    expected: float,
) -> None:
    rows = zip(costs, shares, restarts, strict=True)
    levels = [Level(str(i), c, share / mtbf, restart=r) for i, (c, share, r) in enumerate(rows)]
    closed = pattern_overhead(levels, (1, n), base)
    assert closed == pytest.approx(expected, abs=1.1e-5)
    # Nothing in the neighbourhood is better by more than 0.01 % of wall time.
    for m in (n - 2, n - 1, n, n + 1, n + 2):
        for factor in (0.9, 0.95, 1.0, 1.05):
            assert pattern_overhead(levels, (1, m), base * factor) > closed - 1e-4


def test_shares_of_time_sum_to_one_for_every_seed() -> None:
    tiers = (TierCost("a", 0.9, 2.0, 0.5, 10.0, 100.0), TierCost("b", 0.1, 0.0, 3.0, 90.0, 600.0))
    learning = Strategy("x", tiers, belief=belief_from(), budget=0.03)
    for failures in (Poisson(HOUR), Weibull(HOUR, 0.7), Resampled((60.0, 7200.0, 3600.0))):
        outcome = simulate(learning, failures, horizon=10 * DAY, seeds=50)
        total = outcome.useful + outcome.stall + outcome.slowdown + outcome.rework + outcome.down
        np.testing.assert_allclose(total, 1.0, atol=1e-9)
        assert min(float(one.min()) for one in (outcome.useful, outcome.rework, outcome.down)) >= 0


def test_without_failures_only_the_saves_cost_anything() -> None:
    outcome = simulate(single("x", TierCost("fs", 1.0, 5.0), 100.0), Poisson(1e15), horizon=30 * DAY, seeds=5)
    assert outcome.goodput == pytest.approx(100 / 105)
    assert outcome.saves_per_day == pytest.approx(DAY / 105)


def test_at_the_best_interval_stall_and_rework_are_equal() -> None:
    cost, mtbf = 2.0, 3.1 * HOUR
    outcome = simulate(
        single("x", TierCost("fs", 1.0, cost), young(cost, mtbf)), Poisson(mtbf), horizon=90 * DAY
    )
    parts = outcome.breakdown
    assert parts["stall"] == pytest.approx(parts["rework"], rel=0.03)
    assert parts["stall"] == pytest.approx(0.00947, rel=0.03)


def test_metas_ratio_agrees_while_losses_are_small() -> None:
    mtbf = DAY * 1000 / 3.79 / 2048
    outcome = simulate(
        single("x", TierCost("fs", 1.0, 2.0, restart=600.0), 211.0), Poisson(mtbf), horizon=90 * DAY
    )
    assert outcome.goodput == pytest.approx(effective_training_time_ratio(211, 2, mtbf, 600), abs=0.003)


def test_a_back_to_back_persist_loses_between_one_and_two_of_itself() -> None:
    persist = 120.0
    tier = TierCost("fs", 1.0, 0.0, persist=persist)
    outcome = simulate(single("x", tier, persist), Poisson(3.1 * HOUR), horizon=90 * DAY, seeds=200)
    assert float(outcome.losses.max()) <= 2 * persist * 1.0001
    assert float(outcome.losses.mean()) == pytest.approx(1.5 * persist, rel=0.02)


def slow_reference(
    interval: float, cost: float, persist: float, restart: float, ups: list[float], horizon: float
) -> float:
    """One job, event by event, nothing vectorised: the useful share of the horizon."""
    clock = work = saved = 0.0
    owed = 0.0
    for up in ups:
        end = min(clock + up, horizon)
        down = min(owed, end - clock)
        now = clock + down
        pending: list[tuple[float, float]] = []  # (durable at, position)
        start = work
        while now < end:
            until_save = interval - (work - start) % interval if work > start else interval
            step = min(until_save, end - now)
            now, work = now + step, work + step
            if step < until_save or now >= end:
                break
            now = min(now + cost, end)
            pending.append((now + persist, work))
        durable = [position for at, position in pending if at <= end]
        saved = max([saved, *durable])
        if end >= horizon:
            return work / horizon
        clock, work, owed = end, saved, restart
    raise AssertionError("not enough up-times")


@pytest.mark.parametrize("seed", range(5))
def test_a_slow_event_by_event_simulation_agrees_on_the_same_failures(seed: int) -> None:
    rng = random.Random(seed)
    ups = [rng.expovariate(1 / (2 * HOUR)) for _ in range(2000)]
    horizon = 60 * DAY
    slow = slow_reference(400.0, 3.0, 45.0, 300.0, ups, horizon)
    tier = TierCost("fs", 1.0, 3.0, persist=45.0, restart=300.0)
    fast = simulate(single("x", tier, 400.0), Replayed(tuple(ups)), horizon=horizon, seeds=1)
    assert fast.goodput == pytest.approx(slow, abs=5e-4)


def test_replaying_a_trace_is_deterministic_and_equal_for_all_seeds() -> None:
    tier = TierCost("fs", 1.0, 3.0, restart=60.0)
    trace = Replayed((3600.0, 90.0, 20_000.0, 7.0))
    one = simulate(single("x", tier, 300.0), trace, horizon=5 * DAY, seeds=3, seed=1)
    two = simulate(single("x", tier, 300.0), trace, horizon=5 * DAY, seeds=3, seed=2)
    assert len(set(one.useful.tolist())) == 1
    assert one.useful.tolist() == two.useful.tolist()


def test_the_same_seed_gives_the_same_result() -> None:
    strategy = single("x", TierCost("fs", 1.0, 3.0), 300.0)
    runs = [
        simulate(strategy, Poisson(HOUR), horizon=DAY, seeds=20, seed=s).useful.tolist() for s in (4, 4, 5)
    ]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("model", [Poisson(1234.0), Weibull(1234.0, 0.7)])
def test_failure_models_have_the_mean_they_claim(model: Poisson | Weibull) -> None:
    drawn = model.draw(np.random.default_rng(0), 1000, 400)
    assert float(drawn.mean()) == pytest.approx(1234.0, rel=0.01)


def test_shares_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ValueError, match="add up to 1"):
        Strategy("x", (TierCost("a", 0.5, 1.0),), (1.0,))


# Learning.


@pytest.mark.parametrize("wrong", [5.0, 0.2])
def test_a_prior_five_times_wrong_costs_less_than_two_percent_of_the_overhead_after_thirty_failures(
    wrong: float,
) -> None:
    mtbf, tier = 3.1 * HOUR, TierCost("fs", 1.0, 2.0, persist=120.0, restart=600.0)
    horizon = 30 * mtbf
    known = single("knows", tier, max(exact(tier.cost, mtbf), tier.persist))
    guess = belief_from((Hint(mtbf * wrong, "a guess"),))
    learning = Strategy("learns", (tier,), belief=guess, budget=0.05)
    overheads = [
        1 / simulate(strategy, Poisson(mtbf), horizon=horizon, seeds=500).goodput - 1
        for strategy in (known, learning)
    ]
    assert overheads[1] / overheads[0] < 1.02
    stubborn = single("never learns", tier, max(exact(tier.cost, mtbf * wrong), tier.persist))
    worst = 1 / simulate(stubborn, Poisson(mtbf), horizon=horizon, seeds=500).goodput - 1
    assert worst > overheads[1]


def test_the_outer_level_keeps_its_phase_across_restarts() -> None:
    # With a failure in every half hour and outer copies every five hours of work, a count that began anew at
    # each restart would hardly ever reach an outer copy.
    tiers = (TierCost("near", 0.99, 1.0), TierCost("far", 0.01, 1.0))
    outcome = simulate(
        Strategy("x", tiers, (60.0, 5 * HOUR)), Poisson(0.5 * HOUR), horizon=60 * DAY, seeds=50
    )
    assert outcome.goodput > 0.9
    assert math.isclose(sum(outcome.breakdown.values()), 1.0)
