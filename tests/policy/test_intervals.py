"""The closed forms against the published and the numerically verified numbers."""

from __future__ import annotations

import math

import pytest

from holdfast.policy import intervals

MINUTE, HOUR = 60.0, 3600.0


@pytest.mark.parametrize(
    ("cost", "mtbf", "young", "daly", "exact", "unit"),
    [
        (5 * MINUTE, 24 * HOUR, 120.0, 116.69, 116.69, MINUTE),
        (5 * MINUTE, 6 * HOUR, 60.0, 56.71, 56.71, MINUTE),
        (5 * MINUTE, 15 * MINUTE, 12.25, 9.14, 9.17, MINUTE),
        (2.0, 3.1 * HOUR, 211.28, 209.95, 209.95, 1.0),
        (60.0, 3 * HOUR, 1138.42, 1098.77, 1098.78, 1.0),
        (1.0, 30 * MINUTE, 60.00, 59.335, 59.335, 1.0),
    ],
)
def test_young_daly_and_the_exact_optimum_equal_the_worked_numbers(
    cost: float, mtbf: float, young: float, daly: float, exact: float, unit: float
) -> None:
    assert intervals.young(cost, mtbf) / unit == pytest.approx(young, abs=0.006)
    assert intervals.daly(cost, mtbf) / unit == pytest.approx(daly, abs=0.006)
    assert intervals.exact(cost, mtbf) / unit == pytest.approx(exact, abs=0.006)


def test_dalys_published_minutes_are_reproduced() -> None:
    published = [(24 * HOUR, 117.0), (6 * HOUR, 57.0), (15 * MINUTE, 9.1)]
    for mtbf, minutes in published:
        assert intervals.daly(5 * MINUTE, mtbf) / MINUTE == pytest.approx(
            minutes, abs=0.5 if minutes > 10 else 0.05
        )


def test_availability_optimal_period_equals_the_published_example() -> None:
    assert intervals.availability_optimal(60, 3 * HOUR, 600) + 60 == pytest.approx(1231.2, abs=0.05)


@pytest.mark.parametrize("cost", [1e-8, 1e-4, 1e-2, 0.1, 0.5, 1.0, 3.0, 25.0])
def test_nothing_near_the_exact_optimum_is_faster(cost: float) -> None:
    best = intervals.exact(cost, 1.0)
    at_best = intervals.expected_time(1.0, best, cost, 1.0)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        assert intervals.expected_time(1.0, best * factor, cost, 1.0) >= at_best * (1 - 1e-12)


@pytest.mark.parametrize(
    ("cost", "young", "daly", "waste"),
    [
        (1e-4, 1.6e-7, 1e-13, 0.0141),
        (1e-3, 4.9e-6, 1e-12, 0.0441),
        (1e-2, 1.5e-4, 8e-12, 0.135),
        (5e-2, 1.7e-3, 2.5e-9, 0.284),
        (0.1, 4.7e-3, 3.0e-8, 0.383),
        (0.5, 5.1e-2, 1.1e-5, 0.698),
        (1.0, 0.14, 1.4e-4, 0.841),
    ],
)
def test_extra_run_time_of_the_approximations_equals_the_table(
    cost: float, young: float, daly: float, waste: float
) -> None:
    best = intervals.expected_time(1.0, intervals.exact(cost, 1.0), cost, 1.0)

    def extra(interval: float) -> float:
        return intervals.expected_time(1.0, interval, cost, 1.0) / best - 1

    assert extra(intervals.young(cost, 1.0)) == pytest.approx(young, rel=0.05)
    assert extra(intervals.daly(cost, 1.0)) == pytest.approx(daly, rel=0.05, abs=1e-12)
    assert 1 - 1 / best == pytest.approx(waste, rel=0.005)


def test_a_wrong_interval_costs_the_mean_of_the_factor_and_its_inverse() -> None:
    cost, mtbf = 1e-6, 1.0
    best = intervals.young(cost, mtbf)
    for factor, price in ((2, 1.25), (0.5, 1.25), (math.sqrt(2), 1.061), (4, 2.125)):
        ratio = intervals.waste(factor * best, cost, mtbf) / intervals.waste(best, cost, mtbf)
        assert ratio == pytest.approx(price, abs=5e-4)


def test_at_the_optimum_stall_and_rework_take_equal_shares() -> None:
    cost, mtbf = 2.0, 3.1 * HOUR
    interval = intervals.young(cost, mtbf)
    assert cost / interval == pytest.approx(interval / 2 / mtbf)
    assert cost / interval == pytest.approx(0.00947, abs=5e-6)


@pytest.mark.parametrize(
    ("stall", "persist", "interval", "exact", "first_order"),
    [
        (1, 60, 147, 0.07762, 0.07472),
        (1, 60, 60, 0.08379, 0.08056),
        (1, 600, 600, 0.15111, 0.14056),
        (1, 600, 1200, 0.18301, 0.16750),
        (5, 300, 329, 0.12066, 0.11376),
        (0.05, 30, 33, 0.06330, 0.06138),
        (0.05, 600, 600, 0.14924, 0.13897),
    ],
)
def test_asynchronous_waste_equals_the_table(
    stall: float, persist: float, interval: float, exact: float, first_order: float
) -> None:
    mtbf, restart = 3 * HOUR, 600.0
    assert intervals.expected_time(1.0, interval, stall, mtbf, restart, persist) - 1 == pytest.approx(
        exact, abs=6e-6
    )
    assert intervals.waste(interval, stall, mtbf, restart, persist) == pytest.approx(first_order, abs=6e-6)


def test_persist_latency_does_not_move_the_optimum() -> None:
    best = intervals.exact(2.0, HOUR)
    for persist in (0.0, 60.0, 600.0):
        times = [intervals.expected_time(1, best * f, 2.0, HOUR, 60.0, persist) for f in (0.99, 1.0, 1.01)]
        assert min(times) == times[1]


def test_checkfreq_steps_take_the_budget_into_account() -> None:
    # The released code answers 22: it only asks that persists do not queue.
    assert intervals.checkfreq_steps(0.25, 0.5, 6.0, 0.05) == 40
    assert intervals.checkfreq_steps(0.25, 0.1, 5.6, 0.05) == 22
    assert intervals.checkfreq_steps(0.25, 0.1, 5.6, 0.05, slots=2) == 11
    assert intervals.checkfreq_steps(10.0, 0.1, 1.0, 0.05) == 1


@pytest.mark.parametrize(
    ("cost", "minutes"),
    [
        (0.1, (8.3, 0.7, 0.3)),
        (1.0, (83.3, 6.8, 3.3)),
        (5.0, (416.7, 34.0, 16.7)),
        (30.0, (2500.0, 204.1, 100.0)),
    ],
)
def test_spending_a_budget_implies_the_mtbf_of_the_table(cost: float, minutes: tuple[float, ...]) -> None:
    for budget, expected in zip((0.01, 0.035, 0.05), minutes, strict=True):
        mtbf = intervals.implied_mtbf(cost, budget)
        assert mtbf / MINUTE == pytest.approx(expected, abs=0.051)
        assert intervals.young(cost, mtbf) == pytest.approx(cost / budget)


def test_effective_training_time_ratio_equals_metas_form() -> None:
    mtbf = 86400 * 1000 / 3.79 / 2048
    assert intervals.effective_training_time_ratio(211, 2, mtbf, 600) == pytest.approx(0.9278, abs=5e-5)


def test_intervals_before_a_known_end_equal_brute_force() -> None:
    cost, rate = 2.0, 1 / (3 * HOUR)
    for window, expected in ((60, 1), (200, 1), (400, 2), (1000, 5), (3600, 17)):
        assert intervals.intervals_before(window, cost, rate) == expected

        def waste(m: int, window: float = window) -> float:
            return m * cost + m * rate * (window / m) ** 2 / 2

        assert min(range(1, 60), key=waste) == expected
