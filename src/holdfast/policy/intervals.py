"""The closed forms: how long to work between two saves, and what that costs. Pure; any one unit of time.

Symbols as in the literature: `cost` is the training time that one save takes, `mtbf` the mean time between
failures of the whole job. Sources: Young 1974, Daly 2006, Saxena et al. 2024 (arXiv 2410.18124), CheckFreq
(FAST'21). The asynchronous form is Daly's with the persist latency added to the restart time.
"""

from __future__ import annotations

import math
from functools import lru_cache


def young(cost: float, mtbf: float) -> float:
    """First-order optimum, sqrt(2·c·M). Good to 0.02 % of run time while c < M/100."""
    return math.sqrt(2 * cost * mtbf)


def daly(cost: float, mtbf: float) -> float:
    """Daly's higher-order estimate."""
    if cost >= 2 * mtbf:
        return mtbf
    ratio = cost / (2 * mtbf)
    return math.sqrt(2 * cost * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


@lru_cache(maxsize=16)  # asked every second, for numbers that change every few minutes
def exact(cost: float, mtbf: float) -> float:
    """The exact optimum under Poisson failures, M·(1 + W0(−exp(−1 − c/M))) with W0 Lambert's function."""
    u = cost / mtbf
    if u < 1e-9:  # the next term of the series is below 1e-5 of this one
        return young(cost, mtbf)
    if u > 30:  # 1 − tau/M is below e^−31: nothing that a float or a machine could tell apart
        return mtbf
    # With z = tau/M the condition reads z + ln(1 − z) = −u. Concave, so Newton from the left converges.
    z = min(daly(cost, mtbf) / mtbf, 1 - math.exp(-1 - u))
    for _ in range(50):
        change = (z + math.log1p(-z) + u) * (1 - z) / z
        z = min(max(z + change, z / 2), 1 - math.exp(-2 - u))
        if abs(change) < 1e-12 * z:
            break
    return mtbf * z


def availability_optimal(cost: float, mtbf: float, restart: float) -> float:
    """Work between saves that maximises availability when failures are counted per wall time.

    The source states the period including the save; this is that period less `cost`.
    """
    return math.sqrt(2 * (mtbf + restart) * cost + cost * cost)


def checkfreq_steps(
    step_seconds: float, stall: float, save_total: float, budget: float, slots: int = 1
) -> int:
    """CheckFreq's interval in steps, with the budget that its released code leaves out.

    `save_total` counts from the start of the stall until the checkpoint is durable; `slots` is how many
    saves may be in flight.
    """
    no_queue = math.ceil(_nearly((save_total - stall) / (slots * step_seconds)))
    affordable = math.ceil(_nearly(stall / (budget * step_seconds)))
    return max(no_queue, affordable, 1)


def _nearly(ratio: float) -> float:
    # 0.5/(0.05·0.25) is 40.00000000000001 in floats; a step more than needed is not what was meant.
    return ratio * (1 - 1e-12)


def implied_mtbf(cost: float, budget: float) -> float:
    """The MTBF for which spending the whole `budget` on saves would be right: c/(2p²)."""
    return cost / (2 * budget * budget)


def expected_time(
    work: float, interval: float, cost: float, mtbf: float, restart: float = 0.0, persist: float = 0.0
) -> float:
    """Expected wall time for `work` seconds of useful work, exactly. Persist latency acts as restart time."""
    return (
        mtbf * math.exp((restart + persist) / mtbf) * math.expm1((interval + cost) / mtbf) * work / interval
    )


def goodput(interval: float, cost: float, mtbf: float, restart: float = 0.0, persist: float = 0.0) -> float:
    """Useful share of wall time, exactly."""
    return 1 / expected_time(1.0, interval, cost, mtbf, restart, persist)


def waste(interval: float, cost: float, mtbf: float, restart: float = 0.0, persist: float = 0.0) -> float:
    """First-order extra time per useful second: c/tau + (tau/2 + P + R)/M."""
    return cost / interval + (interval / 2 + persist + restart) / mtbf


def effective_training_time_ratio(interval: float, cost: float, mtbf: float, restart: float) -> float:
    """Meta's estimate of ETTR (arXiv 2410.21680): (1 − (u0 + dt/2)/M) / (1 + w/dt)."""
    return (1 - (restart + interval / 2) / mtbf) / (1 + cost / interval)


def intervals_before(window: float, cost: float, rate: float) -> int:
    """How many equal intervals to make of a `window` that ends with a save that is taken anyway."""
    if rate <= 0 or window <= 0:
        return 1
    if cost <= 0:
        raise ValueError("a save that costs nothing allows any number of intervals")
    return max(1, math.ceil(_nearly((math.sqrt(1 + 2 * rate * window * window / cost) - 1) / 2)))
