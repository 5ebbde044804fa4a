"""Convergence-aware saving: the fit, the factor, COCI's worked numbers, and a dynamic program as judge."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise

import numpy as np
import pytest
from pretend_training import Pretend

from holdfast.errors import SetupError
from holdfast.policy.belief import Hint, belief_from
from holdfast.policy.build import build_policy
from holdfast.policy.convergence import (
    ConvergenceSettings,
    equal_loss_schedule,
    final_factor,
    progress_schedule,
    worth_factor,
)
from holdfast.policy.loss_curve import LossCurve, LossPoints, fit_loss_curve
from holdfast.policy.loss_watch import LossWatch

THETA, RATE = (-0.078, 0.787), 0.0042  # COCI's example, in minutes
COCI = LossCurve(slope=THETA[0], intercept=THETA[1], floor=0.0)


def noisy(
    curve: LossCurve, span: float, points: int, noise: float, seed: int = 0
) -> tuple[list[float], list[float]]:
    rng = random.Random(seed)
    times = [span * (i + 1) / points for i in range(points)]
    return times, [curve.at(t) + rng.gauss(0, noise) for t in times]


# COCI as released, for the comparison.


def test_equal_loss_spacing_equals_the_released_schedule() -> None:
    slots = equal_loss_schedule(THETA, 0.0015, RATE)
    assert len(slots) == 149
    assert [60 * slot for slot in slots[:3]] == pytest.approx([5.157, 10.348, 15.575], abs=5e-4)
    assert slots[-1] == pytest.approx(69.367, abs=5e-4)
    assert slots[-1] - slots[-2] == pytest.approx(11.722, abs=5e-4)


def test_the_released_schedule_depends_on_the_unit_and_can_be_empty() -> None:
    in_seconds = equal_loss_schedule((THETA[0] / 60, THETA[1]), 0.0015 * 60, RATE / 60)
    assert len(in_seconds) == 2
    assert equal_loss_schedule(THETA, 0.5, RATE) == []


# The "progress" rule.


@pytest.mark.parametrize(
    ("horizon", "cost", "young", "ours"),
    [
        (30, 0.0015, (0.0070, 35), (0.0067, 34)),
        (30, 0.05, (0.0414, 6), (0.0380, 6)),
        (30, 0.5, (0.1089, 1), (0.1182, 2)),
        (60, 0.0015, (0.0077, 70), (0.0065, 60)),
        (60, 0.05, (0.0455, 12), (0.0378, 11)),
        (60, 0.5, (0.1386, 3), (0.1264, 4)),
        (120, 0.0015, (0.0078, 141), (0.0051, 94)),
        (120, 0.05, (0.0459, 24), (0.0296, 17)),
        (120, 0.5, (0.1492, 7), (0.0974, 6)),
    ],
)
def test_square_root_spacing_equals_the_worked_table(
    horizon: float, cost: float, young: tuple[float, int], ours: tuple[float, int]
) -> None:
    gap = math.sqrt(2 * cost / RATE)
    uniform = [gap * (i + 1) for i in range(int(horizon / gap))]
    curved = progress_schedule(COCI, horizon, cost, RATE, least=0.0)
    for schedule, (value, count) in ((uniform, young), (curved, ours)):
        assert len(schedule) == count
        assert progress_objective(schedule, horizon, cost) == pytest.approx(value, abs=6e-5)


def progress_objective(saves: list[float], horizon: float, cost: float) -> float:
    """Expected lost progress plus stall at the mean rate of progress, in units of loss."""
    mean = (COCI.at(0) - COCI.at(horizon)) / horizon
    total = mean * cost * len(saves)
    for start, end in pairwise([0.0, *saves, horizon]):
        area = (COCI.at(end) - COCI.at(start)) / COCI.slope
        total += RATE * (COCI.at(start) * (end - start) - area)
    return total


def test_with_room_for_one_or_two_saves_only_it_is_youngs() -> None:
    settings = ConvergenceSettings(theta=THETA, worth="progress", horizon=30.0)
    assert worth_factor(settings, COCI, 0.0, RATE, cost=0.5) == 1.0
    assert worth_factor(settings, COCI, 0.0, RATE, cost=0.05) > 1.0


def test_gaps_grow_from_below_youngs_to_above_it_and_never_leave_a_plateau_unprotected() -> None:
    cost, horizon = 0.0015, 480.0
    young = math.sqrt(2 * cost / RATE)
    gaps = [b - a for a, b in pairwise([0.0, *progress_schedule(COCI, horizon, cost, RATE)])]
    assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(gaps))
    assert gaps[0] < young < gaps[-1]
    assert gaps[-1] <= 4 * young * (1 + 1e-9)


# The "final" rule, judged by a dynamic program over every possible schedule.


def kept_value(gaps: list[int], cost: int, rate: float, horizon: int, curve: LossCurve) -> float:
    """Expected share of the improvement that is safe when death at `rate` is final. Minutes, exactly."""
    whole = curve.at(0) - curve.floor
    time, work, safe, alive, total = 0, 0, 0.0, 1.0, 0.0
    for gap in gaps:
        if time + gap + cost > horizon:
            break
        survive = math.exp(-rate * (gap + cost))
        total += alive * (1 - survive) * safe
        alive *= survive
        time, work = time + gap + cost, work + gap
        safe = (curve.at(0) - curve.at(work)) / whole
    survive = math.exp(-rate * (horizon - time))
    total += alive * (1 - survive) * safe
    return total + alive * survive * (curve.at(0) - curve.at(work + horizon - time)) / whole


def best_value(cost: int, rate: float, horizon: int, curve: LossCurve) -> float:
    """The same for the best schedule there is: dynamic program over (time, work) in whole minutes."""
    whole = curve.at(0) - curve.floor
    value = np.array([(curve.at(0) - curve.at(w)) / whole for w in range(horizon + 1)])
    best = np.full((horizon + 1, horizon + 1), -np.inf)
    for time in range(horizon, -1, -1):
        works = np.arange(time + 1)
        left = horizon - time
        survive = math.exp(-rate * left)
        choice = (1 - survive) * value[works] + survive * value[works + left]
        for gap in range(1, left - cost + 1):
            survive = math.exp(-rate * (gap + cost))
            later = (1 - survive) * value[works] + survive * best[time + gap + cost, works + gap]
            choice = np.maximum(choice, later)
        best[time, : time + 1] = choice
    return float(best[0, 0])


def whole_minutes(gap: float, horizon: int) -> list[int]:
    saves = [round(gap * (i + 1)) for i in range(int(horizon / gap))]
    return [b - a for a, b in pairwise([0, *saves])]


@pytest.mark.parametrize(
    ("decay", "rate"), [(1 / 15, 1 / 200), (1 / 30, 1 / 200), (1 / 60, 1 / 200), (1 / 30, 1 / 1000)]
)
def test_on_fast_curves_it_beats_young_and_comes_close_to_the_best_schedule_there_is(
    decay: float, rate: float
) -> None:
    cost, horizon = 1, 150
    curve = LossCurve(slope=-decay, intercept=0.0, floor=0.3)
    ideal = kept_value([1] * horizon, 0, rate, horizon, curve)
    young = ideal - kept_value(whole_minutes(math.sqrt(2 * cost / rate), horizon), cost, rate, horizon, curve)
    hazard = rate * final_factor(curve, 0.0, rate)
    ours = ideal - kept_value(
        whole_minutes(math.sqrt(2 * cost / hazard), horizon), cost, rate, horizon, curve
    )
    best = ideal - best_value(cost, rate, horizon, curve)
    assert best <= ours < 0.9 * young
    assert ours < 1.2 * best


@pytest.mark.parametrize("decay", [1 / 2000, 1 / 10_000, 1 / 100_000])
def test_on_flat_curves_it_is_never_more_than_a_hundredth_worse_than_young(decay: float) -> None:
    cost, rate, horizon = 1, 1 / 200, 600
    curve = LossCurve(slope=-decay, intercept=0.0, floor=0.3)
    ideal = kept_value([1] * horizon, 0, rate, horizon, curve)
    young = ideal - kept_value(whole_minutes(math.sqrt(2 * cost / rate), horizon), cost, rate, horizon, curve)
    hazard = rate * final_factor(curve, 0.0, rate)
    ours = ideal - kept_value(
        whole_minutes(math.sqrt(2 * cost / hazard), horizon), cost, rate, horizon, curve
    )
    assert ours <= 1.01 * young


# Units.


@pytest.mark.parametrize("unit", [60.0, 3600.0])
def test_seconds_minutes_and_hours_give_the_same_schedule(unit: float) -> None:
    times, losses = noisy(LossCurve(-1 / 900, 0.7, 0.4), 3600.0, 100, 0.02)
    in_seconds = fit_loss_curve(times, losses)
    in_units = fit_loss_curve([t / unit for t in times], losses)
    assert in_seconds is not None
    assert in_units is not None
    assert in_units.slope == pytest.approx(unit * in_seconds.slope, rel=1e-9)
    rate, cost = 1e-4, 2.0
    assert final_factor(in_units, 600 / unit, rate * unit) == pytest.approx(
        final_factor(in_seconds, 600.0, rate)
    )
    here = progress_schedule(in_seconds, 7200.0, cost, rate)
    there = progress_schedule(in_units, 7200.0 / unit, cost / unit, rate * unit)
    assert [slot * unit for slot in there] == pytest.approx(here, rel=1e-9)


def test_the_unit_of_the_loss_does_not_matter_either() -> None:
    times, losses = noisy(LossCurve(-1 / 900, 0.7, 0.4), 3600.0, 100, 0.02)
    plain = fit_loss_curve(times, losses)
    scaled = fit_loss_curve(times, [1000 * loss + 5 for loss in losses])
    assert plain is not None
    assert scaled is not None
    assert scaled.slope == pytest.approx(plain.slope, rel=1e-6)


# The fit.


@pytest.mark.parametrize("span", [1500.0, 3000.0, 9000.0])
@pytest.mark.parametrize("seed", range(4))
def test_slope_and_floor_are_found_within_ten_percent_under_noise(span: float, seed: int) -> None:
    true = LossCurve(slope=-1 / 600, intercept=math.log(2.0), floor=0.8)
    found = fit_loss_curve(*noisy(true, span, 200, 0.02, seed))
    assert found is not None
    assert found.slope == pytest.approx(true.slope, rel=0.1)
    assert found.floor == pytest.approx(true.floor, rel=0.1)


def test_outliers_do_not_move_the_fit() -> None:
    true = LossCurve(slope=-1 / 600, intercept=math.log(2.0), floor=0.8)
    times, losses = noisy(true, 3000.0, 200, 0.02)
    for i in range(0, 200, 15):
        losses[i] = 40.0
    found = fit_loss_curve(times, losses)
    assert found is not None
    assert found.slope == pytest.approx(true.slope, rel=0.1)


def test_rising_flat_few_and_broken_losses_are_declared_unfit() -> None:
    times = [float(i) for i in range(100)]
    rng = random.Random(2)
    assert fit_loss_curve(times, [1 + t / 100 for t in times]) is None
    assert fit_loss_curve(times, [1.0] * 100) is None
    assert fit_loss_curve(times, [1 + rng.gauss(0, 0.1) for _ in times]) is None
    assert fit_loss_curve(times[:10], [math.exp(-t / 5) for t in times[:10]]) is None
    assert fit_loss_curve(times, [math.nan] * 100) is None


def test_losses_kept_stay_few_and_even() -> None:
    points = LossPoints()
    for i in range(100_000):
        points.add(float(i), 1.0)
    assert 100 <= len(points.times) <= 256
    widths = [b - a for a, b in pairwise(points.times)]
    assert max(widths) < 2.1 * min(widths)


def test_a_change_of_the_curve_is_followed_by_a_fit_of_the_new_one_alone() -> None:
    watch = LossWatch()
    rng = random.Random(4)
    first, second = LossCurve(-1 / 300, 1.0, 2.0), LossCurve(-1 / 2000, 0.0, 0.5)
    for step in range(0, 2000, 8):
        watch.add(step, float(step), first.at(step) + rng.gauss(0, 0.01))
    assert watch.curve is not None
    assert watch.curve.slope == pytest.approx(first.slope, rel=0.1)
    for step in range(2000, 12_000, 8):
        watch.add(step, float(step), second.at(step - 2000) + rng.gauss(0, 0.01))
    assert watch.curve is not None
    assert watch.curve.slope == pytest.approx(second.slope, rel=0.15)


# The whole policy.


def test_from_nothing_it_saves_denser_while_the_loss_falls_and_as_young_on_the_plateau() -> None:
    rng = random.Random(1)
    training = Pretend(
        build_policy("convergence", mtbf="10 h"),
        stall=1.0,
        loss=lambda now: 0.5 + 2 * math.exp(-(now - 1000) / 1200) + rng.gauss(0, 0.02),
    )
    saves = training.run(40_000)
    # Quiet time counts as evidence.
    expected = belief_from((Hint(36_000, ""),))
    soon, later = expected.mean(600), expected.mean(8000 - 1000)
    early = [b.at - a.at for a, b in pairwise(saves) if 1600 < a.at < 3000]
    late = [b.at - a.at for a, b in pairwise(saves) if a.at > 8000]
    assert max(early) == pytest.approx(math.sqrt(2 / (soon + 1 / 1200)), rel=0.15)
    assert min(late) == pytest.approx(math.sqrt(2 / later), rel=0.05)
    assert "progress weighs" not in training.policy.explain()


def test_without_a_usable_curve_it_is_young() -> None:
    rng = random.Random(1)
    flat = Pretend(build_policy("convergence", mtbf="3 h"), stall=2.0, loss=lambda _: 1 + rng.gauss(0, 0.1))
    auto = Pretend(build_policy("auto", mtbf="3 h"), stall=2.0)
    assert [s.step for s in flat.run(10_000)] == [s.step for s in auto.run(10_000)]


def test_given_parameters_make_the_schedule_and_are_not_fitted_over() -> None:
    settings = ConvergenceSettings(theta=(-1 / 3600, 0.8), ts=2.0, rate=1 / 10_800)
    policy = build_policy("convergence", convergence=settings)
    training = Pretend(policy, stall=0.5, loss=lambda _: 7.0)
    saves = training.run(20_000)[2:]
    expected = math.sqrt(2 * 2.0 / (1 / 10_800 + 1 / 3600))
    for a, b in pairwise(saves):
        assert b.at - a.at - 0.5 == pytest.approx(expected, rel=0.02)


def test_the_loss_is_read_seldom() -> None:
    reads = 0

    def loss(now: float) -> float:
        nonlocal reads
        reads += 1
        return math.exp(-now / 1000)

    training = Pretend(build_policy("convergence"), loss=loss)
    training.run(20_000)
    assert 100 < reads < 20_000 / 8 + 1


def test_the_fitted_curve_survives_a_restart_without_new_points() -> None:
    training = Pretend(build_policy("convergence"), loss=lambda now: 0.5 + math.exp(-(now - 1000) / 900))
    training.run(4000)
    kept = json.loads(json.dumps(training.policy.state()))
    policy = build_policy("convergence")
    policy.restore_state(kept)
    policy.restored(0.0, 4000, 1.0)
    Pretend(policy, now=0.0, step=4000).run(2000)
    assert policy.explanation().worth_factor > 3


def test_nonsense_settings_are_refused() -> None:
    with pytest.raises(SetupError, match="does not fall"):
        ConvergenceSettings(theta=(0.1, 1.0))
    with pytest.raises(SetupError, match="needs its length"):
        ConvergenceSettings(worth="progress")
    with pytest.raises(SetupError, match="ts must be positive"):
        ConvergenceSettings(ts=0.0)
