"""The rule that the simulator runs is the one that trains: same numbers in, same interval out."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.plan.model import Strategy, TierCost
from holdfast.plan.monte_carlo import Beliefs
from holdfast.policy.belief import belief_from
from holdfast.policy.build import build_policy
from holdfast.policy.failures import FailureHistory, Spell
from holdfast.policy.observation import Observation
from holdfast.policy.profile import Profile

HOUR = 3600.0


@pytest.mark.parametrize("failures", [0, 1, 5, 40])
@pytest.mark.parametrize(("cost", "persist"), [(2.0, 30.0), (0.5, 900.0), (40.0, 10.0)])
def test_engine_and_simulator_choose_the_same_interval(failures: int, cost: float, persist: float) -> None:
    spells = tuple(Spell(i * 1e6, i * 1e6 + 3 * HOUR, "failure") for i in range(failures))
    known = Profile(step_seconds=0.1, stall_seconds=cost, cost_seconds=cost, persist_seconds=persist, saves=9)
    policy = build_policy("young", budget=0.03, history=FailureHistory(spells), profile=known)
    policy.restored(0.0, 100, 10.0)
    policy.decide(Observation(now=0.1, step=101, epoch=0))
    beliefs = Beliefs(belief_from(), 1)
    for _ in spells:
        beliefs.after_spell(np.array([3 * HOUR]), np.array([True]))
    learned = Strategy("x", (TierCost("fs", 1.0, cost, persist=persist),), belief=belief_from(), budget=0.03)
    simulated = learned.intervals(beliefs.mean(np.zeros(1)), np.zeros(1))
    assert policy.explanation().interval_seconds == pytest.approx(float(simulated[0][0]), rel=1e-4)
