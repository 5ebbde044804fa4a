"""The engine of every policy: save when the expected loss since the last save exceeds the price of saving.

Driven by observations alone: it reads no clock, does no I/O, and asks the same few questions at every step,
so that `decide` costs microseconds. Every named policy is a setting of this one engine (see `build`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.policy.belief import Belief
from holdfast.policy.bounds import Bounds, Rule, Situation, bounds_for
from holdfast.policy.convergence import ConvergenceSettings, worth_factor
from holdfast.policy.costs import MeasuredCosts
from holdfast.policy.deadline import Demand, Ending
from holdfast.policy.expected_loss import ExpectedLoss
from holdfast.policy.explanation import Explanation
from holdfast.policy.loss_watch import LossWatch
from holdfast.policy.observation import Decision, Observation, SaveCost
from holdfast.policy.profile import Profile
from holdfast.policy.rhythm import Rhythm
from holdfast.units import Every, format_seconds

# The first save of a fresh run does not wait for a profile: it is the one that proves that saving works.
FIRST_SAVE_STEPS = 50
FIRST_SAVE_SECONDS = 30.0
FIRST_SAVE_WARM_UP = 3
# Where failures are near it comes sooner: as if it cost so many steps.
FIRST_SAVE_WORTH = 2.0
# A save is never free: someone pays for the bytes. Also keeps the interval from collapsing on a fast machine.
LEAST_COST = 1e-3
# The cost in use follows the measured one only beyond these, so that noise does not move the interval. Up
# sooner than down, because the budget is a cap.
FOLLOW_UP = 1.04
FOLLOW_DOWN = 1 / 1.12

_NOT_DUE = Decision(False, "the expected loss is below the price of a save")
_IN_FLIGHT = Decision(False, "a save is in flight")
_RETRY_LATER = Decision(False, "the last save failed; it is tried again shortly")
_ENDING = Decision(False, "the last save before the deadline is done")
_ENDING_SOON = Decision(False, "the last save before the deadline is near")
_LOOKING = Decision(False, "a few steps without a save show what saves cost")
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
    epoch_ends: bool = False
    setting: str = ""


class DebtPolicy:
    """Answers at every step whether to save now. Build one with `build_policy`."""

    def __init__(self, settings: DebtSettings, belief: Belief, profile: Profile | None = None) -> None:
        self.settings = settings
        self._belief = belief
        self._costs = MeasuredCosts(profile)
        self._rhythm = Rhythm(settings.every) if settings.every else None
        self._watch = LossWatch(settings.convergence.manual_curve) if settings.convergence else None
        self._trained_before = 0.0

        self._started: float | None = None
        self._fresh = True
        self._now = 0.0
        self._step = 0
        self._first_step = 0
        self._boundary: float | None = None
        self._loss = ExpectedLoss()
        self._settling: SaveCost | None = None
        self._disturbed = False
        self.saves_started = 0

        self._ending = Ending()
        self._cost_used: float | None = None
        self._rate = 0.0
        self._factor = 1.0
        self._hazard = 0.0
        self._refresh_at = -math.inf
        self._earliest = 0.0
        self._bounds = Bounds(math.inf, 0.0, math.inf, math.inf, "none")
        self._situation = Situation(0.0, LEAST_COST, 0.0, 0.0, 0.0)
        self._refreshed_for = 0.0
        self._owed = self._age = 0.0

    # What the engine asks, at every step.

    def decide(self, seen: Observation) -> Decision:
        now = seen.now
        if self._started is None:
            self._start(now, seen.step)
        self._age = age = self._loss.grow(self._now, now, self._hazard)
        self._owed = self._loss.debt
        self._now = now
        if seen.step > self._step:  # not asked again at the same boundary
            self._count_step(now, seen.step)
        if seen.epoch_ended:  # what comes between epochs, such as validation, is no step
            self._boundary = None
        if now >= self._refresh_at or self._ending.moved(seen.deadline):
            self._refresh(now, seen.deadline)
        if self._watch is not None:
            self._read_loss(self._watch, seen)
        in_rhythm = self._rhythm is not None and self._rhythm.due(seen, age)
        if now < self._loss.retry_at and now < self._ending.last_save_at:
            return _RETRY_LATER
        if seen.notice is not None or seen.epoch_ended or now >= self._ending.last_save_at:
            forced = self._ending.asks(seen)  # without regard to a save in flight: there may be no later one
            if forced is None and seen.epoch_ended and self.settings.epoch_ends:
                forced = Demand("the epoch ended")
            if forced is not None:
                return Decision(True, forced.reason, forced.final)
        if seen.save_in_flight:
            return _IN_FLIGHT
        if age < self._earliest:
            return _NOT_DUE
        if self._ending.too_late_for_another(now):
            return _ENDING_SOON
        return self._routine(seen, age, in_rhythm)

    def _routine(self, seen: Observation, age: float, in_rhythm: bool) -> Decision:
        bounds, ending = self._bounds, self._ending
        if age >= bounds.longest:
            limit = format_seconds(self.settings.max_loss or 0)
            return Decision(True, f"max_loss {limit} would be exceeded")
        if self._rhythm is not None:
            return Decision(True, str(self._rhythm)) if in_rhythm else _OUT_OF_RHYTHM
        if self._first_save_due(age):
            return Decision(True, "first save")
        if ending.last_save_done:
            return _ENDING
        if ending.gap is not None:
            if age >= ending.gap:
                return Decision(True, f"an even part of the time until the deadline, {format_seconds(age)}")
            return _NOT_DUE
        if self._loss.debt >= bounds.price and age >= bounds.shortest:
            return _LOOKING if self._costs.needs_quiet_steps else Decision(True, self._reason())
        if seen.epoch_ended and age >= bounds.interval / 2:
            return Decision(True, "the epoch ended, and a save was soon due")
        return _NOT_DUE

    def save_started(self, now: float, step: int) -> None:
        """A snapshot of `step` has been taken; the debt restarts from here."""
        if self._started is None:
            self._start(now, step)
        # From the boundary on, whenever the snapshot is done: that is where the saved state stands.
        self._loss.save_started(self._now, step)
        if self._rhythm is not None:
            self._rhythm.save_started(step)
        self._disturbed = True
        self.saves_started += 1
        self._ending.save_started(self._now)
        self._refresh_at = -math.inf

    def save_committed(self, now: float, cost: SaveCost) -> None:
        self._loss.save_committed(now, cost.step, cost.stall_seconds)
        if self._rhythm is not None:
            self._rhythm.save_ended(cost.step, failed=False)
        self._settle()
        self._settling = cost

    def save_failed(self, now: float, step: int) -> None:
        """The save of `step` did not become durable; put the debt back, and try again after a pause."""
        self._loss.save_failed(now, step, self._hazard, self._bounds.shortest)
        self._ending.save_failed()
        if self._rhythm is not None:
            self._rhythm.save_ended(step, failed=True)
        if not self._loss.pending:
            self._disturbed = False
            self._costs.forget_disturbed()
        self._refresh_at = -math.inf

    def restored(self, now: float, step: int, seconds: float) -> None:
        """The run continues from `step`, read in `seconds`."""
        self._costs.restored(seconds)
        self._start(now, step)
        self._fresh = False

    # How it comes to its numbers.

    def _start(self, now: float, step: int) -> None:
        self._started = self._now = now
        self._loss.start(now)
        self._step = self._first_step = step
        self._boundary = None
        self._fresh = step <= 1

    def _running_for(self, now: float) -> float:
        return now - self._started if self._started is not None else 0.0

    def _training_time(self, now: float) -> float:
        return self._trained_before + now - (self._started if self._started is not None else now)

    def _count_step(self, now: float, step: int) -> None:
        length = None if self._boundary is None else (now - self._boundary) / (step - self._step)
        self._boundary = now
        self._step = step
        if not self._disturbed:
            if length is not None:
                self._costs.quiet_step(length)
            return
        if length is not None:
            self._costs.disturbed_step(length)
        if self._settling is not None:
            self._settle()
            self._disturbed = self._loss.pending
            self._refresh_at = -math.inf

    def _settle(self) -> None:
        if self._settling is not None:
            self._costs.save_measured(self._settling)
            self._settling = None

    def _first_save_due(self, age: float) -> bool:
        if self._costs.saves_here or not (self._fresh or self._costs.cost_seconds is None):
            return False
        steps = self._step - self._first_step + 1
        if self._loss.pending or steps <= FIRST_SAVE_WARM_UP:
            return False
        if steps >= FIRST_SAVE_STEPS or age >= FIRST_SAVE_SECONDS:
            return True
        usual = self._costs.steps.typical
        return usual is not None and self._loss.debt >= FIRST_SAVE_WORTH * usual

    def _reason(self) -> str:
        if self.settings.rule == "budget":
            cost = format_seconds(self._cost_used or LEAST_COST)
            return f"the budget of {100 * self.settings.budget:.3g} % allows a save that costs {cost}"
        price = format_seconds(self._bounds.price)
        return f"expected loss {format_seconds(self._loss.debt)} exceeds the price of a save, {price}"

    def _read_loss(self, watch: LossWatch, seen: Observation) -> None:
        t = self._training_time(seen.now)
        if seen.loss is not None and watch.wants(seen.step, t):
            watch.add(seen.step, t, seen.loss())

    def _refresh(self, now: float, deadline: float | None) -> None:
        """Take the newest costs and rates into the numbers that `decide` compares against."""
        costs, manual = self._costs, self.settings.convergence
        self._refreshed_for = self._running_for(now)
        rate = self._belief.mean(self._refreshed_for)
        cost = costs.cost_seconds
        if manual is not None:
            rate = manual.rate or rate
            cost = manual.ts or cost
        self._rate = rate
        if cost is not None:
            cost = max(cost, LEAST_COST)
            used = self._cost_used
            if used is None or not used * FOLLOW_DOWN < cost < used * FOLLOW_UP:
                self._cost_used = cost
        if self._watch is not None and manual is not None:
            spent = self._cost_used or LEAST_COST
            self._factor = worth_factor(manual, self._watch.curve, self._training_time(now), rate, spent)
        self._hazard = self._rate * self._factor
        self._bounds = bounds = self._bounds_now()
        self._ending.plan(
            deadline,
            last_save=self._loss.since,
            surely_within=costs.surely_within(),
            step=costs.steps.typical,
            cost=self._cost_used,
            rate=self._hazard,
            interval=bounds.interval,
            shortest=bounds.shortest,
            longest=bounds.longest,
        )
        # The first save of a fresh run proves that saving works; it does not wait for the budget.
        first = self._cost_used is None or (self._fresh and not self._costs.saves_here)
        self._earliest = 0.0 if self._rhythm is not None or first else bounds.shortest
        self._refresh_at = now + min(1.0, max(0.02, bounds.interval / 16))

    def _bounds_now(self) -> Bounds:
        known, costs = self._cost_used, self._costs
        self._situation = here = Situation(
            rate=self._hazard,
            cost=known if known is not None else LEAST_COST,
            slowdown=max(0.0, (known or 0.0) - (costs.stall_seconds or 0.0)),
            persist=costs.persist_seconds,
            step=costs.steps.typical or 0.0,
            restart=costs.restore_seconds or 0.0,
        )
        settings = self.settings
        bounds = bounds_for(settings.rule, here, budget=settings.budget, max_loss=settings.max_loss)
        if known is None:  # nothing is measured: only the promise and the first save can ask for one
            return Bounds(math.inf, 0.0, bounds.longest, math.inf, "first save", bounds.conflict)
        return bounds

    # What it tells.

    def explanation(self) -> Explanation:
        """The numbers that went in, the interval that came out, and the bound in force."""
        profile, ending = self._costs.profile(), self._ending
        interval: float | None = self._bounds.interval
        limit, rule = self._bounds.limit, "next save not yet known"
        if self._rhythm is not None:
            rule, limit = f"saves {self._rhythm}", "every"
            interval = self._rhythm.seconds(profile.step_seconds)
        elif ending.last_save_done:
            rule, limit, interval = "the last save before the deadline is done", "deadline", None
        elif ending.gap is not None:
            limit, interval = "deadline", ending.gap
        elif self._cost_used is None:
            rule = f"first save within {FIRST_SAVE_SECONDS:.0f} s or {FIRST_SAVE_STEPS} steps"
        if interval is not None and not math.isfinite(interval):
            interval = None
        wait = None if interval is None else min(self._loss.since + interval, ending.last_save_at) - self._now
        return Explanation(
            policy=self.settings.name,
            rule=rule,
            limit=limit,
            interval_seconds=interval,
            next_save_in=wait,
            mtbf_seconds=1 / self._rate if self._rate > 0 and self.settings.rule != "budget" else None,
            failures_seen=self._belief.seen,
            expects=self._belief.words(self._running_for(self._now)),
            save_cost_seconds=self._cost_used,
            stall_seconds=profile.stall_seconds,
            persist_seconds=profile.persist_seconds,
            step_seconds=profile.step_seconds,
            budget=self.settings.budget,
            stall_share=self._cost_used / interval if self._cost_used is not None and interval else None,
            rework_share=self._rate * interval / 2 if interval else None,
            saves_measured=profile.saves,
            worth_factor=self._factor,
            conflict=self._bounds.conflict,
        )

    def starts_from(self) -> dict[str, Any]:
        """The settings and hints that, with the journal, give every number again."""
        settings, belief = self.settings, self._belief
        return {
            "rule": settings.rule,
            "budget": settings.budget,
            "max_loss": settings.max_loss,
            "rate": settings.convergence.rate if settings.convergence else None,
            "fact": belief.fact,
            "hints": [asdict(hint) for hint in belief.hints],
        }

    def numbers(self) -> dict[str, float | None]:
        """What the last decision was made from, and what followed. See `made_again`."""
        here, bounds = self._situation, self._bounds
        found = {
            "running_for": self._refreshed_for,
            "rate": self._rate,
            "factor": self._factor,
            **asdict(here),
            "price": bounds.price,
            "shortest": bounds.shortest,
            "longest": bounds.longest,
            "debt": self._owed,
            "age": self._age,
        }
        found["measured"] = float(self._cost_used is not None)
        return {name: value if math.isfinite(value) else None for name, value in found.items()}

    def explain(self) -> str:
        return self.explanation().line()

    @property
    def save_pending(self) -> bool:
        """Whether a save has been taken of which it is not known yet how it ended."""
        return self._loss.pending

    @property
    def profile(self) -> Profile:
        """What has been measured so far."""
        return self._costs.profile()

    def state(self) -> dict[str, Any]:
        """What was learned, as plain JSON values, for the next process of this run."""
        self._settle()
        state: dict[str, Any] = {
            "version": 1,
            "setting": self.settings.setting,
            "profile": self._costs.profile().to_dict(),
            "trained_seconds": self._training_time(self._now),
        }
        if self._watch is not None:
            state["loss"] = self._watch.state()
        return state

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state()` gave. Anything unreadable is left out and measured again."""
        if state.get("version") != 1:
            return
        profile, loss = state.get("profile"), state.get("loss")
        # Costs measured on other hardware, storage or sizes mislead; what the training did stays true.
        if isinstance(profile, Mapping) and state.get("setting") == self.settings.setting:
            self._costs = MeasuredCosts(Profile.from_dict(profile))
        trained = state.get("trained_seconds")
        if isinstance(trained, (int, float)) and trained >= 0:
            self._trained_before = float(trained)
        if self._watch is not None and isinstance(loss, Mapping):
            self._watch.restore_state(loss)
        self._refresh_at = -math.inf
