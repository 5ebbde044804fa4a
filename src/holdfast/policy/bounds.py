"""From measured costs, a failure rate and the user's wishes to one interval and the reason for it. Pure.

Order of precedence: physics (one persist at a time, whole steps), then `max_loss`, a promise, then the
budget, a cap. The interval that minimises expected waste moves freely between them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from holdfast.policy.intervals import availability_optimal, daly, exact, young
from holdfast.units import format_seconds

# Of all time: what a budget may cost before it is mentioned.
WORTH_SAYING = 0.01

Rule = Literal["exact", "young", "daly", "availability", "budget"]


@dataclass(frozen=True)
class Situation:
    """Seconds, and failures per second. `rate` includes the worth of progress, if that is weighed."""

    rate: float
    cost: float
    slowdown: float
    persist: float
    step: float
    restart: float = 0.0


@dataclass(frozen=True)
class Bounds:
    """Save when the debt reaches `price` and the gap is at least `shortest`, or when it reaches `longest`."""

    interval: float
    shortest: float
    longest: float
    price: float
    limit: str
    conflict: str | None = None


def wanted_interval(rule: Rule, here: Situation) -> float:
    """The interval that the rule alone would choose."""
    if rule == "budget":  # CheckFreq: as often as the budget allows
        return 0.0
    if here.rate <= 0:
        return math.inf
    mtbf = 1 / here.rate
    if rule == "young":
        return young(here.cost, mtbf)
    if rule == "daly":
        return daly(here.cost, mtbf)
    if rule == "availability":
        return availability_optimal(here.cost, mtbf, here.restart)
    return exact(here.cost, mtbf)


def bounds_for(rule: Rule, here: Situation, *, budget: float, max_loss: float | None = None) -> Bounds:
    wanted = wanted_interval(rule, here)
    price = here.rate * wanted * wanted / 2 if math.isfinite(wanted) else math.inf
    physics = max(here.persist, here.step)
    # The gap is measured in wall time, of which `slowdown` is part of the price and not of the work.
    affordable = here.cost / budget + here.slowdown
    shortest = max(physics, affordable)
    longest = math.inf
    conflict = None
    if max_loss is not None:
        # A failure loses the gap and the save that was not durable yet; it may come a step after it was due.
        longest = max_loss - here.persist - here.step
        if longest < physics:
            at_best = 2 * here.persist + here.step
            conflict = (
                f"max_loss {format_seconds(max_loss)} cannot be kept: a save takes "
                f"{format_seconds(here.persist)} to become durable, so {format_seconds(at_best)} may be lost"
            )
            longest = shortest = physics
        elif longest < affordable:
            conflict = (
                f"max_loss {format_seconds(max_loss)} costs {100 * here.cost / longest:.2g} % "
                f"and the budget is {100 * budget:.2g} %; max_loss wins"
            )
            shortest = min(shortest, longest)
    elif rule != "budget" and physics < affordable and wanted < affordable:
        conflict = _dear_budget(here, budget, max(wanted, physics), affordable)
    interval = min(max(wanted, shortest), longest)
    return Bounds(
        interval, shortest, longest, price, _limit(wanted, shortest, longest, here, affordable), conflict
    )


def _dear_budget(here: Situation, budget: float, wanted: float, affordable: float) -> str | None:
    """A cap that the user set is kept. That it costs more than it saves is said."""
    with_it, without = (here.cost / gap + here.rate * gap / 2 for gap in (affordable, wanted))
    if with_it - without < WORTH_SAYING:
        return None
    return (
        f"the budget of {100 * budget:.2g} % costs more than it saves: saves and lost work take about "
        f"{100 * with_it:.0f} % of the time with it and {100 * without:.0f} % "
        f'with budget="{math.ceil(100 * here.cost / wanted)}%"'
    )


def _limit(wanted: float, shortest: float, longest: float, here: Situation, affordable: float) -> str:
    if shortest <= wanted <= longest:
        return "none"
    if wanted > longest:
        return "max_loss"
    if shortest == affordable:
        return "budget"
    return "one persist at a time" if here.persist >= here.step else "one step"
