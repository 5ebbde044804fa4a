"""The policies that people run today, and ours, set up for one job so that they can be compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

from holdfast.policy.belief import Hint, belief_from
from holdfast.policy.intervals import checkfreq_steps, exact
from holdfast.policy.levels import Level, nest
from holdfast.simulate.failure_models import FailureModel
from holdfast.simulate.job import Job
from holdfast.simulate.monte_carlo import simulate
from holdfast.simulate.outcome import Outcome
from holdfast.simulate.scheme import Fixed, Learned, Scheme, Shield, nested, single
from holdfast.simulate.slots import SlotScheme, equal_loss_slots, simulate_slots

OURS = "holdfast, knowing the rate"
OURS_LEARNED = "holdfast, not knowing the rate"

LEARNING_SEEDS = 100


def policies(job: Job, horizon: float) -> list[Scheme | SlotScheme]:
    """Every policy of the comparison, in the order of the tables."""
    sync, asynchronous = job.synchronous(), job.asynchronous()
    best_sync = exact(sync.cost, job.mtbf)
    best_async = max(exact(asynchronous.cost, job.mtbf), asynchronous.persist)
    second = checkfreq_steps(
        1.0, asynchronous.cost, asynchronous.cost + asynchronous.persist, job.budget
    )  # in steps of one second
    rows: list[Scheme | SlotScheme] = [
        single("every epoch, sync", sync, job.epoch),
        single("fixed, sync", sync, job.fixed),
        single("fixed, async", asynchronous, max(job.fixed, asynchronous.persist)),
        single("Young/Daly, sync", sync, best_sync),
        SlotScheme(
            "COCI (equal loss), async",
            asynchronous,
            equal_loss_slots(max(1, int(horizon / best_async)), horizon),
        ),
        single("CheckFreq", asynchronous, float(second), limit="budget"),
        single("Young/Daly, async", asynchronous, best_async),
    ]
    kept = worthwhile_shields(job)
    if len(kept) > 1:
        inner = max(exact(kept[0].cost, job.mtbf / kept[0].share), kept[0].persist)
        every = tuple(10**i for i in range(len(kept)))
        rows.append(nested("SCR, flush every 10th", kept, inner, every))
    return [*rows, ours(job), learned(job)]


def ours(job: Job) -> Scheme:
    """The debt rule with the rate known."""
    kept = worthwhile_shields(job)
    pattern = nest(
        [Level(one.name, one.cost, one.share / job.mtbf, one.persist, one.restart) for one in kept]
    )
    seconds = []
    limit = "none"
    for shield, n in zip(kept, pattern.every, strict=True):
        affordable = shield.cost / job.budget
        if max(shield.persist, affordable) >= pattern.base * n:
            limit = f"budget ({shield.name})" if affordable > shield.persist else f"persist ({shield.name})"
        seconds.append(max(pattern.base * n, shield.persist, affordable))
    return Scheme(OURS, kept, Fixed(tuple(seconds)), limit=limit)


def learned(job: Job, wrong: float | None = None) -> Scheme:
    """The debt rule as it is by default: it learns. `wrong` gives it a guess so many times off."""
    kept = worthwhile_shields(job)
    hints = () if wrong is None else (Hint(job.mtbf * wrong, f"{wrong:g}x wrong"),)
    return Scheme(OURS_LEARNED, kept, Learned(kept, job.budget, belief_from(hints)))


def compare(
    job: Job,
    failures: FailureModel,
    *,
    horizon: float,
    seeds: int = 1000,
    seed: int = 0,
    progress: Callable[[str], None] = lambda name: None,
) -> list[Outcome]:
    """Simulate every policy on the same failures."""
    outcomes = []
    for scheme in policies(job, horizon):
        progress(scheme.name)
        if isinstance(scheme, SlotScheme):
            one = simulate_slots(scheme, failures, horizon=horizon, seeds=seeds, seed=seed)
        else:
            # A belief per seed is dear, and a hundred of them say what a thousand do.
            few = seeds if scheme.intervals.belief is None else min(seeds, LEARNING_SEEDS)
            one = simulate(scheme, failures, horizon=horizon, seeds=few, seed=seed)
        outcomes.append(one)
    return outcomes


def worthwhile_shields(job: Job) -> tuple[Shield, ...]:
    """The tiers worth having, by first-order waste. A skipped one hands its failures up."""
    all_shields = job.shields()
    top = len(all_shields) - 1
    subsets = [(*below, top) for size in range(top + 1) for below in combinations(range(top), size)]
    return min((_subset(all_shields, kept, job.stall) for kept in subsets), key=lambda one: _waste(one, job))


def _subset(shields: tuple[Shield, ...], kept: tuple[int, ...], stall: float) -> tuple[Shield, ...]:
    chosen: list[Shield] = []
    below = 0
    for i in kept:
        share = sum(one.share for one in shields[below : i + 1])
        chosen.append(replace(shields[i], share=share, stall=0.0 if chosen else stall))
        below = i + 1
    return tuple(chosen)


def _waste(shields: tuple[Shield, ...], job: Job) -> float:
    total, inner = 0.0, 0.0
    for one in shields:
        rate = one.share / job.mtbf
        if rate == 0:
            continue
        # An outer copy is taken of an inner save, so it cannot come more often.
        inner = max(math.sqrt(2 * one.cost / rate), one.persist, one.cost / job.budget, inner)
        total += one.cost / inner + rate * (inner / 2 + one.persist + one.restart)
    return total
