"""The engine of every policy: save when the expected loss since the last save exceeds the price of saving.

Driven by observations alone: it reads no clock, does no I/O, and asks the same few questions at every step,
so that `decide` costs microseconds. Every named policy is a setting of this one engine (see `build`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.policy.bounds import Bounds, Rule, Situation, bounds_for
from holdfast.policy.convergence import ConvergenceSettings, worth_factor
from holdfast.policy.costs import MeasuredCosts
from holdfast.policy.deadline import HORIZON_INTERVALS, gap_towards, last_save_at
from holdfast.policy.explanation import Explanation
from holdfast.policy.failures import FailureRate
from holdfast.policy.loss_watch import LossWatch
from holdfast.policy.observation import Decision, Observation, SaveCost
from holdfast.policy.outer_levels import OuterLevel, OuterLevels
from holdfast.policy.profile import Profile
from holdfast.policy.rhythm import Rhythm
from holdfast.units import Every, format_seconds

# The first save of a fresh run does not wait for a profile: it is the one that proves that saving works.
FIRST_SAVE_STEPS = 50
FIRST_SAVE_SECONDS = 30.0
FIRST_SAVE_WARM_UP = 3
# A save is never free: someone pays for the bytes. Also keeps the interval from collapsing on a fast machine.
LEAST_COST = 1e-3
# The cost in use follows the measured one only beyond this, so that noise does not move the interval.
DEAD_BAND = 1.15
LONGEST_RETRY_PAUSE = 300.0

_NOT_DUE = Decision(False, "the expected loss is below the price of a save")
_IN_FLIGHT = Decision(False, "a save is in flight")
_RETRY_LATER = Decision(False, "the last save failed; it is tried again shortly")
_ENDING = Decision(False, "the last save before the deadline is done")
_OUT_OF_RHYTHM = Decision(False, "the rhythm is not due")


@dataclass(frozen=True)
class DebtSettings:
    """What makes the engine one policy or another."""

    name: str
    rule: Rule = "exact"
    budget: float = 0.03
    every: Every | None = None
    max_loss: float | None = None
    convergence: ConvergenceSettings | None = None
    levels: tuple[OuterLevel, ...] = ()
    epoch_ends: bool = False


@dataclass(frozen=True)
class _Before:
    """What a save replaced, to be put back if it fails."""

    since: float
    debt: float
    at: float
    rhythm: tuple[int | None, int] | None


class DebtPolicy:
    """Answers at every step whether to save now. Build one with `build_policy`."""

    def __init__(self, settings: DebtSettings, rate: FailureRate, profile: Profile | None = None) -> None:
        self.settings = settings
        self._belief = rate
        self._costs = MeasuredCosts(profile)
        self._rhythm = Rhythm(settings.every) if settings.every else None
        self._levels = OuterLevels(settings.levels)
        self._watch = LossWatch(settings.convergence.manual_curve) if settings.convergence else None
        self._trained_before = 0.0

        self._started: float | None = None
        self._fresh = True
        self._now = 0.0
        self._steps = 0
        self._since = 0.0
        self._debt = 0.0
        self._pending: dict[int, _Before] = {}
        self._settling: SaveCost | None = None
        self._disturbed = False
        self._chosen: tuple[str, ...] = ()
        self._failed_in_a_row = 0
        self._retry_at = -math.inf

        self._deadline: float | None = None
        self._last_save_at = math.inf
        self._last_save_done = False
        self._notice: str | None = None
        self._notice_done: str | None = None

        self._cost_used: float | None = None
        self._rate = 0.0
        self._factor = 1.0
        self._hazard = 0.0
        self._end_gap: float | None = None
        self._refresh_at = -math.inf
        self._bounds = Bounds(math.inf, 0.0, math.inf, math.inf, "none")

    # What the engine asks, at every step.

    def decide(self, seen: Observation) -> Decision:
        now = seen.now
        if self._started is None:
            self._start(now, seen.step)
        length = now - self._now
        self._now = now
        self._steps += 1
        if self._disturbed:
            self._count_disturbed(length)
        elif self._steps > 1:
            self._costs.steps.add(length)
        age = now - self._since
        at_risk = length if length < age else age
        self._debt += self._hazard * (age - at_risk / 2) * at_risk
        if now >= self._refresh_at or seen.deadline != self._deadline:
            self._deadline = seen.deadline
            self._refresh(now)
        if self._watch is not None and seen.loss is not None:
            t = self._training_time(now)
            if self._watch.wants(seen.step, t):
                self._watch.add(seen.step, t, seen.loss())

        forced = self._forced(seen)
        if forced is not None:
            return self._save(now, forced)
        in_rhythm = self._rhythm.due(seen, age) if self._rhythm else False
        if seen.save_in_flight:
            return _IN_FLIGHT
        if now < self._retry_at:
            return _RETRY_LATER
        bounds = self._bounds
        if age >= bounds.longest:
            return self._save(
                now, f"max_loss {format_seconds(self.settings.max_loss or 0)} would be exceeded"
            )
        if self._rhythm is not None:
            return self._save(now, str(self._rhythm)) if in_rhythm else _OUT_OF_RHYTHM
        if self._first_save_due(age):
            return self._save(now, "first save")
        if self._last_save_done:
            return _ENDING
        if age < bounds.shortest:
            return _NOT_DUE
        if self._end_gap is not None:
            if age >= self._end_gap:
                return self._save(now, f"an even part of the time until the deadline, {format_seconds(age)}")
            return _NOT_DUE
        if self._debt >= bounds.price:
            return self._save(now, self._reason())
        if seen.epoch_ended and age >= bounds.interval / 2:
            return self._save(now, "the epoch ended, and a save was soon due")
        return _NOT_DUE

    def save_started(self, now: float, step: int) -> None:
        """A snapshot of `step` has been taken; the debt restarts from here."""
        if self._started is None:
            self._start(now, step)
        rhythm = self._rhythm.saved(step) if self._rhythm else None
        self._pending[step] = _Before(self._since, self._debt, now, rhythm)
        self._since = now
        self._debt = 0.0
        self._disturbed = True
        self._levels.save_started(now, step, self._chosen)
        self._chosen = ()
        self._notice_done = self._notice
        self._last_save_done = now >= self._last_save_at
        self._refresh_at = -math.inf

    def save_committed(self, now: float, cost: SaveCost) -> None:
        if cost.level:
            self._levels.committed(cost.level, cost.step, cost.stall_seconds, cost.persist_seconds)
            return
        self._pending.pop(cost.step, None)
        self._failed_in_a_row = 0
        self._retry_at = -math.inf
        self._settle()
        self._settling = cost

    def save_failed(self, now: float, step: int) -> None:
        """The save of `step` did not become durable; put the debt back, and try again after a pause."""
        before = self._pending.pop(step, None)
        self._levels.failed(step)
        self._failed_in_a_row += 1
        # At once the first time, because what is unsaved is at risk; then doubling, because a store that is
        # full or gone must not be asked to stall training at every step.
        pause = max(self._bounds.shortest, 0.5 * 2.0**self._failed_in_a_row)
        self._retry_at = now + min(pause, LONGEST_RETRY_PAUSE)
        if before is not None:
            if before.since <= self._since:
                grown = (now - before.since) ** 2 - (before.at - before.since) ** 2
                self._debt = before.debt + self._hazard * grown / 2
                self._since = before.since
            if self._rhythm is not None and before.rhythm is not None:
                self._rhythm.undo(before.rhythm)
        self._last_save_done = False
        self._notice_done = None
        if not self._pending:
            self._disturbed = False
            self._costs.forget_disturbed()
        self._refresh_at = -math.inf

    def level_failed(self, step: int, level: str) -> None:
        """The copy of `step` did not reach this outer level; its debt is put back."""
        self._levels.failed(step, level)

    def restored(
        self, now: float, step: int, seconds: float, level_steps: Mapping[str, int] | None = None
    ) -> None:
        """The run continues from `step`, read in `seconds`. `level_steps`: the newest on each outer level."""
        self._costs.restored(seconds)
        self._start(now, step)
        self._fresh = False
        usual = self._costs.steps.typical
        if level_steps and usual is not None:
            self._levels.restored(now, {name: (step - last) * usual for name, last in level_steps.items()})

    # How it comes to its numbers.

    def _start(self, now: float, step: int) -> None:
        self._started = self._now = self._since = now
        self._fresh = step <= 1

    def _training_time(self, now: float) -> float:
        return self._trained_before + now - (self._started if self._started is not None else now)

    def _count_disturbed(self, length: float) -> None:
        self._costs.disturbed_step(length)
        if self._settling is not None:
            self._settle()
            self._disturbed = bool(self._pending)
            self._refresh_at = -math.inf

    def _settle(self) -> None:
        if self._settling is not None:
            self._costs.save_measured(self._settling)
            self._settling = None

    def _first_save_due(self, age: float) -> bool:
        if self._costs.saves_here or not (self._fresh or self._costs.cost_seconds is None):
            return False
        if self._pending or self._steps <= FIRST_SAVE_WARM_UP:
            return False
        return self._steps >= FIRST_SAVE_STEPS or age >= FIRST_SAVE_SECONDS

    def _forced(self, seen: Observation) -> str | None:
        if seen.notice is not None and seen.notice != self._notice_done:
            self._notice = seen.notice
            # Not again and again to a store that fails, but without regard to a save that is in flight.
            return seen.notice if seen.now >= self._retry_at else None
        if seen.now >= self._last_save_at and not self._last_save_done and seen.now >= self._retry_at:
            left = format_seconds(max(0.0, (self._deadline or seen.now) - seen.now))
            return f"the last save before the deadline, {left} ahead"
        if seen.epoch_ended and self.settings.epoch_ends and not seen.save_in_flight:
            return "the epoch ended"
        return None

    def _save(self, now: float, reason: str) -> Decision:
        self._chosen = self._levels.due(now, self._rate * self._factor, self._usual_gap())
        return Decision(True, reason, self._chosen)

    def _usual_gap(self) -> float:
        interval = self._bounds.interval
        return interval if math.isfinite(interval) else 0.0

    def _reason(self) -> str:
        cost = format_seconds(self._cost_used or LEAST_COST)
        if self.settings.rule == "budget":
            return f"the budget of {100 * self.settings.budget:.3g} % allows a save that costs {cost}"
        return f"expected loss {format_seconds(self._debt)} exceeds the price of a save, {cost}"

    def _refresh(self, now: float) -> None:
        """Take the newest costs and rates into the numbers that `decide` compares against."""
        settings, costs = self.settings, self._costs
        manual = settings.convergence
        running_for = now - self._started if self._started is not None else 0.0
        rate = self._belief.mean(running_for)
        cost = costs.cost_seconds
        if manual is not None:
            rate = manual.rate or rate
            cost = manual.ts or cost
        self._rate = rate * (1 - self._levels.share)
        if cost is not None:
            cost = max(cost, LEAST_COST)
            used = self._cost_used
            if used is None or not used / DEAD_BAND < cost < used * DEAD_BAND:
                self._cost_used = cost
        if self._watch is not None and manual is not None:
            spent = self._cost_used or LEAST_COST
            self._factor = worth_factor(manual, self._watch.curve, self._training_time(now), rate, spent)
        self._hazard = self._rate * self._factor
        self._bounds = self._bounds_now()
        self._last_save_at = math.inf
        self._end_gap = None
        if self._deadline is not None:
            self._plan_end(self._deadline)
        self._refresh_at = now + min(1.0, max(0.02, self._usual_gap() / 16))

    def _bounds_now(self) -> Bounds:
        step = self._costs.steps.typical or 0.0
        persist = self._costs.persist_seconds
        known = self._cost_used
        stall = self._costs.stall_seconds or 0.0
        here = Situation(
            rate=self._hazard,
            cost=known if known is not None else LEAST_COST,
            slowdown=max(0.0, (known or 0.0) - stall),
            persist=persist,
            step=step,
            restart=self._costs.restore_seconds or 0.0,
        )
        bounds = bounds_for(
            self.settings.rule, here, budget=self.settings.budget, max_loss=self.settings.max_loss
        )
        if known is None:  # nothing is measured: only the promise and the first save can ask for one
            return Bounds(
                math.inf, 0.0, bounds.longest, math.inf, "the first save is still to come", bounds.conflict
            )
        return bounds

    def _plan_end(self, deadline: float) -> None:
        step = self._costs.steps.typical
        self._last_save_at = last_save_at(deadline, self._costs.surely_within(), step)
        window = self._last_save_at - self._since
        interval = self._bounds.interval
        if self._cost_used is not None and self._hazard > 0 and window < HORIZON_INTERVALS * interval:
            shortest = max(self._bounds.shortest, step or 0.0)
            gap = gap_towards(self._last_save_at, self._since, self._cost_used, self._hazard, shortest)
            self._end_gap = min(gap, self._bounds.longest)

    # What it tells.

    def explanation(self) -> Explanation:
        """The numbers that went in, the interval that came out, and the bound in force."""
        age = self._now - self._since
        profile = self._costs.profile()
        bounds = self._bounds
        interval: float | None = self._end_gap if self._end_gap is not None else bounds.interval
        limit, rule = bounds.limit, "next save not yet known"
        if self._rhythm is not None:
            rule = f"saves {self._rhythm}"
            limit = "every"
            interval = (
                self.settings.every.amount
                if self.settings.every and self.settings.every.unit == "seconds"
                else None
            )
            if self.settings.every and self.settings.every.unit == "steps" and profile.step_seconds:
                interval = self.settings.every.amount * profile.step_seconds
        elif self._cost_used is None:
            rule = "the first save comes within 30 s or 50 steps"
        if self._end_gap is not None:
            limit = "deadline"
        if interval is not None and not math.isfinite(interval):
            interval = None
        due_in = None if interval is None else max(0.0, min(interval - age, self._last_save_at - self._now))
        mtbf = 1 / self._rate if self._rate > 0 and self.settings.rule != "budget" else None
        cost = self._cost_used
        stall_share = cost / interval if cost is not None and interval else None
        return Explanation(
            policy=self.settings.name,
            rule=rule,
            limit=limit,
            interval_seconds=interval,
            next_save_in=due_in,
            mtbf_seconds=mtbf,
            failures_seen=self._belief.seen,
            save_cost_seconds=cost,
            stall_seconds=profile.stall_seconds,
            persist_seconds=profile.persist_seconds,
            step_seconds=profile.step_seconds,
            budget=self.settings.budget,
            stall_share=stall_share,
            rework_share=self._rate * interval / 2 if interval else None,
            saves_measured=profile.saves,
            worth_factor=self._factor,
            conflict=bounds.conflict,
        )

    def explain(self) -> str:
        return self.explanation().line()

    @property
    def profile(self) -> Profile:
        """What has been measured so far."""
        return self._costs.profile()

    def state(self) -> dict[str, Any]:
        """What was learned, as plain JSON values, for the next process of this run."""
        self._settle()
        state: dict[str, Any] = {
            "version": 1,
            "profile": self._costs.profile().to_dict(),
            "trained_seconds": self._training_time(self._now),
            "levels": self._levels.state(self._now),
        }
        if self._watch is not None:
            state["loss"] = self._watch.state()
        return state

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state()` gave. Anything unreadable is left out and measured again."""
        if state.get("version") != 1:
            return
        profile, levels, loss = state.get("profile"), state.get("levels"), state.get("loss")
        if isinstance(profile, Mapping):
            self._costs = MeasuredCosts(Profile.from_dict(profile))
        trained = state.get("trained_seconds")
        if isinstance(trained, (int, float)) and trained >= 0:
            self._trained_before = float(trained)
        if isinstance(levels, Mapping):
            self._levels.restore_state(self._now, levels)
        if self._watch is not None and isinstance(loss, Mapping):
            self._watch.restore_state(loss)
        self._refresh_at = -math.inf
