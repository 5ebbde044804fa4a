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


def lives(
    seed: int, kills: int = KILLS, mean: float = MTBF, stall: float = STALL, persist: float = PERSIST,
    step: float = STEP, **settings: object,
) -> tuple[float, float, float]:  # fmt: skip
    """Kill at random, restart from the last commit. Stall and rework per up-time, and the up-time itself."""
    rng = random.Random(seed)
    kept: dict[str, object] | None = None
    durable, up_time, stalled, redone = 0, 0.0, 0.0, 0.0
    spells: list[Spell] = []
    for _ in range(kills):
        policy = build_policy("auto", history=FailureHistory(tuple(spells)), **settings)  # type: ignore[arg-type]
        if kept is not None:
            policy.restore_state(kept)
        policy.restored(0.0, durable, 10.0)
        lifetime = rng.expovariate(1 / mean)
        training = Pretend(policy, step, stall, persist, now=0.0, step=durable)
        training.run(seconds=lifetime)
        committed = [save.step for save in training.saves if save.at + stall + persist <= training.now]
        durable = max([durable, *committed])
        redone += (training.step - durable) * step
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


def test_one_kill_a_minute_from_the_first_minute_on_costs_hardly_more_than_knowing_the_rate() -> None:
    """Default settings. With a prior of 2,000 hours, 62 % of the time was lost here."""
    kills, mtbf, cost, persist, step = 40, 60.0, 0.015, 0.1, 0.05
    stall, rework, up_time = lives(3, kills, mtbf, cost, persist, step)
    seen = up_time / kills
    interval = exact(cost, seen)
    knowing = cost / interval + (interval / 2 + persist + step / 2) / seen
    assert stall + rework < 1.25 * knowing + 0.002


@pytest.mark.parametrize(("cost", "most"), [(0.015, 0.0005), (2.0, 0.003)])
def test_a_quiet_month_spends_next_to_nothing_on_saves(cost: float, most: float) -> None:
    training = Pretend(build_policy("auto"), step_seconds=20.0, stall=cost, persist=5.0, now=0.0)
    training.run(seconds=30 * 86400.0)
    assert training.overhead / training.now < most
