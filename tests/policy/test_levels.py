"""Several levels: closed form against the table of the exact chain."""

from __future__ import annotations

import math

import pytest

from holdfast.policy.levels import Level, nest, own_interval

HOUR = 3600.0

TABLE = [
    ((2, 30), (0.92, 0.08), 3.1 * HOUR, (220.3, 2893.1), 13, 221.5),
    ((0.5, 2), (0.92, 0.08), 3.1 * HOUR, (110.1, 747.0), 7, 108.9),
    ((2, 30), (0.92, 0.08), 0.48 * HOUR, (86.7, 1138.4), 13, 87.2),
    ((2, 60), (0.93, 0.07), 50 * HOUR, (879.9, 17566.2), 20, 878.9),
    ((3, 600), (0.85, 0.15), 6 * HOUR, (390.5, 13145.3), 34, 387.2),
]


@pytest.mark.parametrize(("costs", "shares", "mtbf", "intervals", "n", "base"), TABLE)
def test_the_closed_form_equals_the_table(
    costs: tuple[float, float],
    shares: tuple[float, float],
    mtbf: float,
    intervals: tuple[float, float],
    n: int,
    base: float,
) -> None:
    rows = zip(("node", "site"), costs, shares, strict=True)
    pattern = nest([Level(name, cost, share / mtbf) for name, cost, share in rows])
    assert pattern.intervals == pytest.approx(intervals, abs=0.1)
    assert pattern.every == (1, n)
    assert pattern.base == pytest.approx(base, abs=0.1)


def test_a_level_is_not_copied_to_faster_than_it_can_persist() -> None:
    assert own_interval(Level("far", cost=0.1, rate=1e-3, persist=600.0)) == 600.0
    assert own_interval(Level("unneeded", cost=0.1, rate=0.0)) == math.inf
