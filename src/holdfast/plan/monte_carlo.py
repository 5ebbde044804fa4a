"""The simulator: a Python loop over failures, NumPy over seeds. Deterministic for a given seed.

Within a spell the job works at a pace slowed by its saves; at a failure each level still holds the newest
copy that was durable by then, and the severity decides which level the job comes back from. A restart may
itself be interrupted. Agrees with Daly's exact expectation and with the chain of two nested levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.plan.failure_models import DAY, FailureModel
from holdfast.plan.model import Floats, Strategy
from holdfast.policy.belief import RATES, STARTS_ANEW, Belief

Truths = NDArray[np.bool_]
BLOCK = 128  # failures drawn at once
# A spell is cut into parts that grow where it is learnt: a belief changes with the logarithm of its age.
FIRST_PART = 4.0
PARTS_GROW = 1.4
MOST_PARTS = 50  # of the horizon
SAMPLED_SEEDS = 64  # of which single losses are kept, for the percentile


@dataclass(frozen=True)
class Outcome:
    """What a simulation measured. Arrays hold one value per seed; the shares of wall time sum to one."""

    name: str
    horizon: float
    useful: Floats
    stall: Floats
    slowdown: Floats
    rework: Floats
    down: Floats
    failures: Floats
    saves: Floats
    bytes_written: Floats
    losses: Floats  # work lost by single failures, a sample over all seeds
    intervals: tuple[float, ...]
    limit: str = "none"

    @property
    def goodput(self) -> float:
        """Mean useful share of the time the job held its machines."""
        return float(self.useful.mean())

    @property
    def standard_error(self) -> float:
        return float(self.useful.std() / np.sqrt(len(self.useful)))

    def percentile(self, q: float) -> float:
        return float(np.percentile(self.useful, q))

    @property
    def breakdown(self) -> dict[str, float]:
        parts = {
            "useful": self.useful,
            "stall": self.stall,
            "slowdown": self.slowdown,
            "rework": self.rework,
            "restart": self.down,
        }
        return {name: float(values.mean()) for name, values in parts.items()}

    @property
    def saves_per_day(self) -> float:
        return float(self.saves.mean()) / (self.horizon / DAY)

    @property
    def bytes_per_day(self) -> float:
        return float(self.bytes_written.mean()) / (self.horizon / DAY)

    @property
    def loss_p99(self) -> float:
        """Work that all but one in a hundred failures lose less than, in seconds."""
        return float(np.percentile(self.losses, 99)) if len(self.losses) else 0.0


class Beliefs:
    """The engine's belief about the failure rate, one per seed: same grid, same update, same mean.

    Ages and spells are arrays of one value per seed, in seconds.
    """

    def __init__(self, start: Belief, seeds: int) -> None:
        self._rates = np.asarray(RATES)[:, None]
        self._anew = np.asarray(start.anew)[:, None]
        self._weights = np.repeat(np.asarray(start.weights)[:, None], seeds, axis=1)

    def mean(self, age: Floats) -> Floats:
        """Failures per second after so long in the present spell."""
        left = self._weights * np.exp(-self._rates * age)
        mean: Floats = (left * self._rates).sum(axis=0) / left.sum(axis=0)
        return mean

    def after_spell(self, seconds: Floats, failed: NDArray[np.bool_]) -> None:
        left = self._weights * np.exp(-self._rates * seconds)
        left = np.where(failed, left * self._rates, left)
        left /= left.sum(axis=0)
        self._weights = np.where(failed, (1 - STARTS_ANEW) * left + STARTS_ANEW * self._anew, left)


def simulate(
    strategy: Strategy, failures: FailureModel, *, horizon: float, seeds: int = 1000, seed: int = 0
) -> Outcome:
    """Run `seeds` independent jobs for `horizon` seconds of wall time each."""
    job = _Jobs(strategy, horizon, seeds)
    random = np.random.default_rng(seed)
    drawn = 0
    while True:
        up_times = failures.draw(random, BLOCK, seeds, drawn)
        drawn += BLOCK
        severities = random.random((BLOCK, seeds))
        for up, severity in zip(up_times, severities, strict=True):
            if job.spell_in_parts(up, severity) if job.varies else job.spell(up, severity):
                return job.outcome()


class _Jobs:
    """The state of all seeds. Positions are seconds of useful work since the start."""

    def __init__(self, strategy: Strategy, horizon: float, seeds: int) -> None:
        self.strategy = strategy
        self.horizon = horizon
        tiers = strategy.tiers
        self.clock = np.zeros(seeds)
        self.position = np.zeros(seeds)
        self.durable = [np.zeros(seeds) for _ in tiers]
        self.owed = np.zeros(seeds)  # restart time still to be served when the next spell begins
        self.worked = np.zeros(seeds)
        self.stall = np.zeros(seeds)
        self.slowdown = np.zeros(seeds)
        self.down = np.zeros(seeds)
        self.count = np.zeros(seeds)
        self.saves = np.zeros(seeds)
        self.written = np.zeros(seeds)
        self.counted_from = np.zeros(seeds)  # where the lowest level's rhythm stands
        self.losses: list[Floats] = []
        # A failure of severity v needs the first level whose cumulated share exceeds v.
        self.edges = np.cumsum([tier.share for tier in tiers])[:-1]
        self.restart = np.array([tier.restart for tier in tiers])
        self.beliefs = None if strategy.belief is None else Beliefs(strategy.belief, seeds)
        # Whether the intervals change while a spell lasts.
        self.varies = self.beliefs is not None or strategy.fall != 0
        self._choose(np.zeros(seeds), self.position)

    def _choose(self, age: Floats, position: Floats) -> None:
        rate = np.ones_like(age) if self.beliefs is None else self.beliefs.mean(age)
        self.intervals = self.strategy.intervals(rate, np.minimum(position / self.horizon, 1.0))

    def spell_in_parts(self, until_failure: Floats, severity: Floats) -> bool:
        """The same in parts: the interval changes as the spell gets older and the work gets on."""
        lasted = np.minimum(until_failure, self.horizon - self.clock)
        before = until_failure < self.horizon - self.clock
        age, longest = np.zeros_like(lasted), self.horizon / MOST_PARTS
        part = longest if self.beliefs is None else FIRST_PART
        while True:
            rest = np.maximum(until_failure - age, 0.0)
            self._choose(age + part / 2, self.position + part / 2)
            # Whole intervals, so that a part ends with a save and the next one begins at it.
            cycle = self.intervals[0] * self._pace(lasted)
            whole = np.maximum(np.round(part / cycle), 1.0) * cycle + self.owed
            self.spell(np.minimum(rest, whole), severity, ends=(rest > 0) & (rest <= whole))
            age += whole
            if (age >= lasted).all():
                break
            part = min(PARTS_GROW * (part + FIRST_PART), longest)
        if self.beliefs is not None:
            self.beliefs.after_spell(lasted, before)
        return bool((self.clock >= self.horizon).all())

    def spell(self, until_failure: Floats, severity: Floats, ends: Truths | Literal[True] = True) -> bool:
        """Work until the next failure or the end; whether all seeds have reached the end. Where it is not
        true that the spell `ends`, the work goes on."""
        tiers = self.strategy.tiers
        left = self.horizon - self.clock
        lasted = np.minimum(until_failure, left)
        failed = (until_failure < left) & ends
        down = np.minimum(lasted, self.owed)
        up = lasted - down
        pace = self._pace(up)
        worked = up / pace
        reached = self.position + worked
        for tier, interval in zip(tiers, self.intervals, strict=True):
            taken = worked / interval
            self.stall += taken * tier.stall
            self.slowdown += taken * tier.slowdown
            self.saves += taken
            self.written += taken * tier.bytes
        self.worked += worked
        self.down += down
        self.clock += lasted
        self.count += failed
        held = self._held_at_failure(up, pace)
        back = self._restart_point(held, severity)
        level = np.searchsorted(self.edges, severity, side="right")
        if len(self.losses) < 200_000 // SAMPLED_SEEDS:
            few = slice(0, SAMPLED_SEEDS)
            self.losses.append((reached - back)[few][failed[few]])
        self.position = np.where(failed, back, reached)
        for i, one in enumerate(held):
            # What the failure destroyed below its level is written anew from where the job comes back.
            self.durable[i] = np.where(failed, np.where(i < level, back, np.minimum(one, back)), one)
        self.owed = np.where(failed, self.restart[level], self.owed - down)
        counted = self._copies(reached - self.counted_from, self.intervals[0])
        self.counted_from = np.where(failed, back, self.counted_from + counted * self.intervals[0])
        return bool((self.clock >= self.horizon).all())

    def _pace(self, like: Floats) -> Floats:
        """Wall time for a second of work: the saves of all tiers included."""
        pace = np.ones_like(like)
        for tier, interval in zip(self.strategy.tiers, self.intervals, strict=True):
            pace = pace + tier.cost / interval
        return pace

    def _held_at_failure(self, up: Floats, pace: Floats) -> list[Floats]:
        """Newest durable position on each level after `up` seconds of this spell."""
        held: list[Floats] = []
        for i, (tier, interval) in enumerate(zip(self.strategy.tiers, self.intervals, strict=True)):
            by_then = self.position + np.maximum(up - tier.persist, 0.0) / pace
            # The lowest level starts its count anew at a restart; outer ones keep their phase.
            since = self.counted_from if i == 0 else self.durable[i]
            copies = self._copies(by_then - since, interval)
            old = self.durable[i]
            if i == 0:
                old = np.where(up >= tier.persist, np.maximum(old, since), old)
            newest = since + copies * interval
            if i > 0 and self.beliefs is not None:
                # Outer copies are taken of inner saves, whose rhythm changes with what is believed.
                inner, base = self.intervals[0], self.counted_from
                newest = np.where(newest > base, base + self._copies(newest - base, inner) * inner, newest)
            held.append(np.where(copies > 0, newest, old))
        return held

    @staticmethod
    def _copies(work: Floats, interval: Floats) -> Floats:
        copies: Floats = np.maximum(np.floor(work / interval + 1e-9), 0.0)
        return copies

    def _restart_point(self, held: list[Floats], severity: Floats) -> Floats:
        """The newest copy on any level that survives the severity."""
        back = held[-1]
        for edge, one in zip(self.edges[::-1], held[-2::-1], strict=True):
            back = np.where(severity < edge, np.maximum(back, one), back)
        return back

    def outcome(self) -> Outcome:
        horizon, fall = self.horizon, self.strategy.fall
        if fall:
            # Of intervals that grow, the median one: where half of the saves are taken.
            half = -math.log(1 + math.expm1(-fall) / 2) / fall
            self._choose(self.clock, np.full_like(self.clock, half * horizon))
        return Outcome(
            name=self.strategy.name,
            horizon=horizon,
            useful=self.position / horizon,
            stall=self.stall / horizon,
            slowdown=self.slowdown / horizon,
            rework=(self.worked - self.position) / horizon,
            down=self.down / horizon,
            failures=self.count,
            saves=self.saves,
            bytes_written=self.written,
            losses=np.concatenate(self.losses) if self.losses else np.zeros(0),
            intervals=tuple(float(one.mean()) for one in self.intervals),
            limit=self.strategy.limit,
        )
