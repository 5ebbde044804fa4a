"""The ways of saving that people use today, and ours, set up for one job so that they can be compared."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

from holdfast.plan.failure_models import FailureModel
from holdfast.plan.model import Job, Strategy, TierCost, equal_loss, single
from holdfast.plan.monte_carlo import Outcome, simulate
from holdfast.policy.belief import Hint, belief_from
from holdfast.policy.intervals import checkfreq_steps, exact
from holdfast.policy.levels import Level, nest

OURS = "holdfast, knowing the rate"
OURS_LEARNED = "holdfast, not knowing the rate"

LEARNING_SEEDS = 100


def strategies(job: Job, horizon: float) -> list[Strategy]:
    """Every strategy of the comparison, in the order of the tables."""
    sync, background = job.synchronous(), job.asynchronous()
    best_sync = exact(sync.cost, job.mtbf)
    best = max(exact(background.cost, job.mtbf), background.persist)
    # In steps of one second.
    steps = checkfreq_steps(1.0, background.cost, background.cost + background.persist, job.budget)
    rows = [
        single("every epoch, sync", sync, job.epoch),
        single("fixed, sync", sync, job.fixed),
        single("fixed, async", background, max(job.fixed, background.persist)),
        single("Young/Daly, sync", sync, best_sync),
        equal_loss("COCI (equal loss), async", background, max(1, int(horizon / best)), horizon),
        single("CheckFreq", background, float(steps), limit="budget"),
        single("Young/Daly, async", background, best),
    ]
    kept = worthwhile_tiers(job)
    if len(kept) > 1:
        inner = max(exact(kept[0].cost, job.mtbf / kept[0].share), kept[0].persist)
        rows.append(Strategy("SCR, flush every 10th", kept, tuple(inner * 10**i for i in range(len(kept)))))
    return [*rows, ours(job), learned(job)]


def ours(job: Job) -> Strategy:
    """The engine's rule with the rate known."""
    kept = worthwhile_tiers(job)
    pattern = nest(
        [Level(one.name, one.cost, one.share / job.mtbf, one.persist, one.restart) for one in kept]
    )
    seconds = []
    limit = "none"
    for tier, n in zip(kept, pattern.every, strict=True):
        affordable = tier.cost / job.budget
        if max(tier.persist, affordable) >= pattern.base * n:
            limit = f"budget ({tier.name})" if affordable > tier.persist else f"persist ({tier.name})"
        seconds.append(max(pattern.base * n, tier.persist, affordable))
    return Strategy(OURS, kept, tuple(seconds), limit=limit)


def learned(job: Job, wrong: float | None = None) -> Strategy:
    """The engine's rule as it is by default: it learns. `wrong` gives it a guess so many times off."""
    hints = () if wrong is None else (Hint(job.mtbf * wrong, f"{wrong:g}x wrong"),)
    return Strategy(OURS_LEARNED, worthwhile_tiers(job), belief=belief_from(hints), budget=job.budget)


def compare(
    job: Job, failures: FailureModel, *, horizon: float, seeds: int = 1000, seed: int = 0
) -> list[Outcome]:
    """Simulate every strategy on the same failures."""
    # A belief per seed is dear, and a hundred of them say what a thousand do.
    few = min(seeds, LEARNING_SEEDS)
    return [
        simulate(one, failures, horizon=horizon, seeds=few if one.belief else seeds, seed=seed)
        for one in strategies(job, horizon)
    ]


def worthwhile_tiers(job: Job) -> tuple[TierCost, ...]:
    """The tiers worth having, by first-order waste. A skipped one hands its failures up."""
    costs = job.costs()
    last = len(costs) - 1
    subsets = [(*below, last) for size in range(last + 1) for below in combinations(range(last), size)]
    return min((_subset(costs, kept, job.stall) for kept in subsets), key=lambda one: _waste(one, job))


def _subset(costs: tuple[TierCost, ...], kept: tuple[int, ...], stall: float) -> tuple[TierCost, ...]:
    chosen: list[TierCost] = []
    below = 0
    for i in kept:
        share = sum(one.share for one in costs[below : i + 1])
        chosen.append(replace(costs[i], share=share, stall=0.0 if chosen else stall))
        below = i + 1
    return tuple(chosen)


def _waste(tiers: tuple[TierCost, ...], job: Job) -> float:
    total, inner = 0.0, 0.0
    for one in tiers:
        rate = one.share / job.mtbf
        if rate == 0:
            continue
        # An outer copy is taken of an inner save, so it cannot come more often.
        inner = max(math.sqrt(2 * one.cost / rate), one.persist, one.cost / job.budget, inner)
        total += one.cost / inner + rate * (inner / 2 + one.persist + one.restart)
    return total
