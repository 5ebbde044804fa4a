"""Simulating saves at fixed positions of the training, however uneven: for equal-loss spacing (COCI)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from holdfast.simulate.failure_models import FailureModel, Floats
from holdfast.simulate.monte_carlo import BLOCK
from holdfast.simulate.outcome import Outcome
from holdfast.simulate.scheme import Shield


@dataclass(frozen=True)
class SlotScheme:
    """Saves at given positions, in seconds of useful work; one level."""

    name: str
    shield: Shield
    slots: tuple[float, ...]
    limit: str = "none"


def equal_loss_slots(count: int, horizon: float, fall: float = 5.0) -> tuple[float, ...]:
    """Positions of equal decreases of a loss that falls exponentially, by `fall` e-folds in the horizon."""
    whole = 1 - math.exp(-fall)
    return tuple(-horizon / fall * math.log(1 - whole * i / (count + 1)) for i in range(1, count + 1))


def simulate_slots(
    scheme: SlotScheme, failures: FailureModel, *, horizon: float, seeds: int = 1000, seed: int = 0
) -> Outcome:
    shield = scheme.shield
    slots = np.concatenate([[0.0], np.asarray(scheme.slots), [max(2 * horizon, scheme.slots[-1] * 2)]])
    # Wall time, without failures, at which each position has been reached and its save's cost paid.
    times = slots + shield.cost * np.arange(len(slots))
    random = np.random.default_rng(seed)
    clock, position, owed = np.zeros(seeds), np.zeros(seeds), np.zeros(seeds)
    worked, down, count = np.zeros(seeds), np.zeros(seeds), np.zeros(seeds)
    losses: list[Floats] = []
    drawn = 0
    while (clock < horizon).any():
        up_times = failures.draw(random, BLOCK, seeds, drawn)
        drawn += BLOCK
        for until_failure in up_times:
            left = horizon - clock
            lasted = np.minimum(until_failure, left)
            failed = until_failure < left
            waited = np.minimum(lasted, owed)
            start = np.interp(position, slots, times)
            end = start + lasted - waited
            reached = np.interp(end, times, slots)
            safe = np.interp(np.maximum(end - shield.persist, start), times, slots)
            newest = slots[np.maximum(np.searchsorted(slots, safe, side="right") - 1, 0)]
            # What a restart begins from is durable already.
            back = np.maximum(newest, _begun(slots, position))
            worked += reached - position
            down += waited
            clock += lasted
            count += failed
            losses.append((reached - back)[:16][failed[:16]])
            position = np.where(failed, back, reached)
            owed = np.where(failed, shield.restart, 0.0)
            if not (clock < horizon).any():
                break
    spent = np.maximum(0.0, horizon - worked - down)
    share = shield.stall / shield.cost if shield.cost else 0.0
    return Outcome(
        name=scheme.name,
        horizon=horizon,
        useful=position / horizon,
        stall=spent * share / horizon,
        slowdown=spent * (1 - share) / horizon,
        rework=(worked - position) / horizon,
        down=down / horizon,
        failures=count,
        saves=spent / shield.cost if shield.cost else np.zeros(seeds),
        bytes_written=spent / shield.cost * shield.bytes if shield.cost else np.zeros(seeds),
        losses=np.concatenate(losses),
        intervals=(float(np.median(np.diff(slots[:-1]))),),
        limit=scheme.limit,
    )


def _begun(slots: Floats, position: Floats) -> Floats:
    return slots[np.maximum(np.searchsorted(slots, position, side="right") - 1, 0)]
