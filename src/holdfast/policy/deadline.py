"""Saving towards an end: a notice is answered at once, a deadline with one last save that surely fits.

Pure arithmetic and a little memory of what has been answered; never reads a clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.policy.intervals import intervals_before
from holdfast.policy.observation import Observation
from holdfast.units import format_seconds

# Before any save has been measured, leave this much room for the last one.
UNMEASURED_RESERVE = 60.0
# Beyond this many ordinary intervals the end does not change when the next save is due.
HORIZON_INTERVALS = 8


def last_save_at(deadline: float, surely_within: float | None, step_seconds: float | None) -> float:
    """When the final save must start, at the latest."""
    reserve = UNMEASURED_RESERVE if surely_within is None else surely_within
    return deadline - reserve - (step_seconds or 0.0)


def gap_towards(end: float, last_save: float, cost: float, rate: float, shortest: float) -> float:
    """Length of the next interval when the window from `last_save` to `end` is cut into equal ones."""
    window = end - last_save
    if window <= 0:
        return 0.0
    pieces = intervals_before(window, max(cost, 1e-9), rate)
    if shortest > 0:
        pieces = min(pieces, max(1, math.floor(window / shortest)))
    return window / pieces


@dataclass(frozen=True)
class Demand:
    """A save that cannot wait, and whether it is the last one that the deadline leaves time for."""

    reason: str
    final: bool = False


class Ending:
    """What is known of the end of this process, and which part of it has been answered with a save."""

    def __init__(self) -> None:
        self.deadline: float | None = None
        self.last_save_at = math.inf
        self.gap: float | None = None  # even part of the time that is left, once the end is near
        self.last_save_done = False
        self._reserve: float | None = None
        self._trial_taken = False
        self._final_asked = False
        self._notice: str | None = None
        self._notice_answered: str | None = None

    def plan(
        self,
        deadline: float | None,
        *,
        last_save: float,
        surely_within: float | None,
        step: float | None,
        cost: float | None,
        rate: float,
        interval: float,
        shortest: float,
        longest: float,
    ) -> None:
        """Work out the last save and the even parts of the way to it, from the newest costs."""
        self.deadline = deadline
        self.last_save_at = math.inf
        self.gap = None
        self._reserve = surely_within
        if deadline is None:
            return
        self.last_save_at = last_save_at(deadline, surely_within, step)
        window = self.last_save_at - last_save
        if cost is not None and rate > 0 and window < HORIZON_INTERVALS * interval:
            gap = gap_towards(self.last_save_at, last_save, cost, rate, max(shortest, step or 0.0))
            self.gap = min(gap, longest)

    def moved(self, deadline: float | None) -> bool:
        """Whether the deadline is another one; schedulers report it with some jitter."""
        known = self.deadline
        if deadline is None or known is None:
            return deadline is not known
        return abs(deadline - known) > 0.5

    def asks(self, seen: Observation) -> Demand | None:
        """The save that cannot wait, or None."""
        self._final_asked = False
        if seen.notice is not None and seen.notice != self._notice_answered:
            self._notice = seen.notice
            return Demand(seen.notice)
        if seen.now < self.last_save_at or self.last_save_done:
            return None
        left = max(0.0, (self.deadline or seen.now) - seen.now)
        if self._reserve is None and left > 0:
            # Nothing is measured, so the reserve is a guess that may be far too long: one save to find out.
            if self._trial_taken:
                return None
            return Demand("a first save, to know how long the last one before the deadline will take")
        self._final_asked = True
        return Demand(f"the last save before the deadline, {format_seconds(left)} ahead", final=True)

    def too_late_for_another(self, now: float) -> bool:
        """Whether a save begun now might still be in the way when the last one must start."""
        return self._reserve is not None and now + self._reserve > self.last_save_at

    def save_started(self, now: float) -> None:
        self._notice_answered = self._notice
        self._trial_taken = True
        self.last_save_done = self._final_asked

    def save_failed(self) -> None:
        self._notice_answered = None
        self._trial_taken = False
        self.last_save_done = False
