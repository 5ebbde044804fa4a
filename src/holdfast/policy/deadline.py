"""Saving towards a known end: one last save that surely fits, and no save wasted just before it. Pure."""

from __future__ import annotations

import math

from holdfast.policy.intervals import intervals_before

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
