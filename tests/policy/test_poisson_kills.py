"""A hundred and fifty random kills of a pretended training, with the real engine: the model's promise holds.

The slice of `benchmarks/failure_injection.py` that needs no processes, and so can be exact.
"""

from __future__ import annotations

import random

import pytest
from pretend_training import Pretend

from holdfast.policy.build import build_policy
from holdfast.policy.failures import FailureHistory, Spell
from holdfast.policy.intervals import exact

KILLS = 150
MTBF, STALL, PERSIST, STEP = 1800.0, 1.0, 8.0, 3.0


def lives(seed: int, **settings: object) -> tuple[float, float, float]:
    """Kill at random, restart from the last commit. Stall and rework per up-time, and the up-time itself."""
    rng = random.Random(seed)
    kept: dict[str, object] | None = None
    durable, up_time, stalled, redone = 0, 0.0, 0.0, 0.0
    spells: list[Spell] = []
    for _ in range(KILLS):
        policy = build_policy("auto", history=FailureHistory(tuple(spells)), **settings)  # type: ignore[arg-type]
        if kept is not None:
            policy.restore_state(kept)
        policy.restored(0.0, durable, 10.0)
        lifetime = rng.expovariate(1 / MTBF)
        training = Pretend(policy, STEP, STALL, PERSIST, now=0.0, step=durable)
        training.run(seconds=lifetime)
        committed = [save.step for save in training.saves if save.at + STALL + PERSIST <= training.now]
        durable = max([durable, *committed])
        redone += (training.step - durable) * STEP
        stalled += training.overhead
        up_time += training.now
        kept = policy.state()
        spells.append(Spell(up_time - training.now, up_time, "failure"))
    return stalled / up_time, redone / up_time, up_time


@pytest.mark.parametrize("settings", [{"mtbf": 5 * MTBF}, {}])
def test_stall_and_rework_are_what_the_model_predicts(settings: dict[str, object]) -> None:
    stall, rework, up_time = lives(seed=11, budget=0.05, **settings)
    interval = exact(STALL, MTBF)
    failures = KILLS / up_time  # as many as there were, not as many as expected
    assert stall == pytest.approx(STALL / (interval + STALL), rel=0.15)
    assert rework == pytest.approx(failures * (interval / 2 + PERSIST), rel=0.15)
