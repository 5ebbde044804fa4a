"""The simulator: a Python loop over failures, NumPy over seeds. Deterministic for a given seed.

Within a spell the job works at a pace slowed by its saves; at a failure each level still holds the newest
copy that was durable by then, and the severity decides which level the job comes back from. A restart may
itself be interrupted. Agrees with Daly's exact expectation and with the chain of two nested levels.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.simulate.beliefs import Beliefs
from holdfast.simulate.failure_models import FailureModel, Floats
from holdfast.simulate.outcome import Outcome
from holdfast.simulate.scheme import Scheme

Truths = NDArray[np.bool_]
BLOCK = 128  # failures drawn at once
# A spell of a rule that learns is cut into parts that grow: a belief changes with the logarithm of its age.
FIRST_PART = 4.0
PARTS_GROW = 1.4
SAMPLED_SEEDS = 64  # of which single losses are kept, for the percentile


def simulate(
    scheme: Scheme, failures: FailureModel, *, horizon: float, seeds: int = 1000, seed: int = 0
) -> Outcome:
    """Run `seeds` independent jobs for `horizon` seconds of wall time each."""
    job = _Jobs(scheme, horizon, seeds)
    random = np.random.default_rng(seed)
    drawn = 0
    while True:
        up_times = failures.draw(random, BLOCK, seeds, drawn)
        drawn += BLOCK
        severities = random.random((BLOCK, seeds))
        for up, severity in zip(up_times, severities, strict=True):
            if job.spell(up, severity) if job.beliefs is None else job.learning_spell(up, severity):
                return job.outcome()


class _Jobs:
    """The state of all seeds. Positions are seconds of useful work since the start."""

    def __init__(self, scheme: Scheme, horizon: float, seeds: int) -> None:
        self.scheme = scheme
        self.horizon = horizon
        shields = scheme.shields
        self.clock = np.zeros(seeds)
        self.position = np.zeros(seeds)
        self.durable = [np.zeros(seeds) for _ in shields]
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
        self.edges = np.cumsum([shield.share for shield in shields])[:-1]
        self.restart = np.array([shield.restart for shield in shields])
        belief = scheme.intervals.belief
        self.beliefs = None if belief is None else Beliefs(belief, seeds)
        self.intervals = scheme.intervals.choose(
            np.ones(seeds) if self.beliefs is None else self.beliefs.mean(self.clock)
        )

    def learning_spell(self, until_failure: Floats, severity: Floats) -> bool:
        """The same in parts: what is believed, and with it the interval, changes as the spell gets older."""
        assert self.beliefs is not None
        shields = self.scheme.shields
        lasted = np.minimum(until_failure, self.horizon - self.clock)
        before = until_failure < self.horizon - self.clock
        age, part = np.zeros_like(lasted), FIRST_PART
        while True:
            rest = np.maximum(until_failure - age, 0.0)
            self.intervals = self.scheme.intervals.choose(self.beliefs.mean(age + part / 2))
            # Whole intervals, so that a part ends with a save and the next one begins at it.
            pace = 1 + sum(one.cost / tau for one, tau in zip(shields, self.intervals, strict=True))
            cycle = self.intervals[0] * pace
            whole = np.maximum(np.round(part / cycle), 1.0) * cycle + self.owed
            self.spell(np.minimum(rest, whole), severity, ends=(rest > 0) & (rest <= whole))
            age += whole
            if (age >= lasted).all():
                break
            part = PARTS_GROW * (part + FIRST_PART)
        self.beliefs.after_spell(lasted, before)
        return bool((self.clock >= self.horizon).all())

    def spell(self, until_failure: Floats, severity: Floats, ends: Truths | Literal[True] = True) -> bool:
        """Work until the next failure or the end; whether all seeds have reached the end. Where it is not
        true that the spell `ends`, the work goes on."""
        shields = self.scheme.shields
        left = self.horizon - self.clock
        lasted = np.minimum(until_failure, left)
        failed = (until_failure < left) & ends
        down = np.minimum(lasted, self.owed)
        up = lasted - down
        pace = np.ones_like(up)
        for shield, interval in zip(shields, self.intervals, strict=True):
            pace = pace + shield.cost / interval
        worked = up / pace
        reached = self.position + worked
        for shield, interval in zip(shields, self.intervals, strict=True):
            taken = worked / interval
            self.stall += taken * shield.stall
            self.slowdown += taken * shield.slowdown
            self.saves += taken
            self.written += taken * shield.bytes
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

    def _held_at_failure(self, up: Floats, pace: Floats) -> list[Floats]:
        """Newest durable position on each level after `up` seconds of this spell."""
        held: list[Floats] = []
        for i, (shield, interval) in enumerate(zip(self.scheme.shields, self.intervals, strict=True)):
            by_then = self.position + np.maximum(up - shield.persist, 0.0) / pace
            # The lowest level starts its count anew at a restart; outer ones keep their phase.
            since = self.counted_from if i == 0 else self.durable[i]
            copies = self._copies(by_then - since, interval)
            old = self.durable[i]
            if i == 0:
                old = np.where(up >= shield.persist, np.maximum(old, since), old)
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
        horizon = self.horizon
        return Outcome(
            name=self.scheme.name,
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
            limit=self.scheme.limit,
        )
