"""The debt rule under hazards and costs that change, judged by a dynamic program over all schedules."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from holdfast.policy.expected_loss import ExpectedLoss

HORIZON = 600.0  # minutes, as in the notes
CELL = 0.5


def constant(t: float) -> float:
    return 1 / 300


def front_loaded(t: float) -> float:
    return 1 / 100 if t < 60 else 1 / 1000


def weibull(t: float) -> float:
    return (0.65 / 220) * ((t + 0.5) / 220) ** -0.35


def cycle(t: float) -> float:
    return (1 / 300) * (1 + 0.67 * math.sin(2 * math.pi * t / 200))


def cheap(t: float) -> float:
    return 0.5


def dear_in_the_middle(t: float) -> float:
    return 2.0 if 200 < t < 400 else 0.5


Function = Callable[[float], float]


def at_risk(hazard: Function) -> tuple[np.ndarray, np.ndarray]:
    """Integrals of the hazard, and of the hazard times t, up to each cell."""
    middles = np.arange(CELL / 2, HORIZON, CELL)
    rates = np.array([hazard(t) for t in middles])
    zero = np.zeros(1)
    return np.concatenate([zero, np.cumsum(rates) * CELL]), np.concatenate(
        [zero, np.cumsum(rates * middles) * CELL]
    )


def best(hazard: Function, cost: Function) -> float:
    """Least cost of any schedule: dynamic program over the last save."""
    zeroth, first = at_risk(hazard)
    cells = len(zeroth) - 1
    times = np.arange(cells + 1) * CELL
    least = np.zeros(cells + 1)  # cost up to and including a save at this cell
    for end in range(1, cells + 1):
        starts = np.arange(end)
        losses = first[end] - first[starts] - times[starts] * (zeroth[end] - zeroth[starts])
        least[end] = float((least[:end] + losses).min()) + (cost(end * CELL) if end < cells else 0.0)
    return float(least[cells])


def by_debt(hazard: Function, cost: Function) -> tuple[float, int]:
    """What the engine's own bookkeeping does, asked twenty times per cell."""
    loss = ExpectedLoss()
    loss.start(0.0)
    step, now, total, saves = CELL / 20, 0.0, 0.0, 0
    for i in range(round(HORIZON / step)):
        before, now = now, (i + 1) * step
        loss.grow(before, now, hazard((before + now) / 2))
        if loss.debt >= cost(now) and now < HORIZON:
            total += loss.debt + cost(now)
            saves += 1
            loss.save_started(now, i)
            loss.save_committed(now, i, 0.0)
    return total + loss.debt, saves


@pytest.mark.parametrize(
    ("hazard", "cost", "dynamic", "debt", "saves"),
    [
        (constant, cheap, 34.144, 34.228, 34),
        (front_loaded, cheap, 22.316, 23.030, 23),
        (weibull, cheap, 32.402, 32.415, 32),
        (cycle, cheap, 33.023, 33.162, 33),
        (constant, dear_in_the_middle, 44.223, 46.224, 28),
    ],
)
def test_the_debt_rule_comes_close_to_the_best_schedule_there_is(
    hazard: Function, cost: Function, dynamic: float, debt: float, saves: int
) -> None:
    optimum = best(hazard, cost)
    found, count = by_debt(hazard, cost)
    assert optimum == pytest.approx(dynamic, rel=0.002)
    assert found == pytest.approx(debt, rel=0.005)
    assert abs(count - saves) <= 1
    assert found <= 1.05 * optimum
