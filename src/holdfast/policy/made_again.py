"""Makes every decision of a journal again, from its own lines, and says where a bit differs. Pure.

What a decision rests on is in the journal: the settings and hints of the process that made it, the spells
before it, how long it had been running, and what a save was measured to cost. From these follow the rate and
the bounds; from the bounds and the debt follows whether to save.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from holdfast.events import Event, RunStarted, SaveDecided
from holdfast.policy.belief import Belief, Hint, belief_from
from holdfast.policy.bounds import Situation, bounds_for
from holdfast.policy.failures import FailureHistory

_BY_THE_RULE = "expected loss"


def differences(events: Sequence[Event]) -> tuple[int, list[str]]:
    """How many decisions were made again, and one sentence for each number that came out otherwise."""
    made, found = 0, []
    belief: Belief | None = None
    decides: dict[str, Any] = {}
    for number, event in enumerate(events):
        if isinstance(event, RunStarted):
            decides, belief = event.decides or {}, None
            if event.decides is not None:
                hints = [Hint(**hint) for hint in decides["hints"]]
                history = FailureHistory.from_events(events[:number])
                belief = belief_from(hints, fact=decides["fact"]).after(history)
        elif isinstance(event, SaveDecided) and event.numbers is not None and belief is not None:
            made += 1
            found += [f"step {event.step}: {one}" for one in _differ(event, belief, decides)]
    return made, found


def _differ(event: SaveDecided, belief: Belief, decides: dict[str, Any]) -> list[str]:
    said = {name: math.inf if value is None else value for name, value in (event.numbers or {}).items()}
    rate = decides["rate"] or belief.mean(said["running_for"])
    here = Situation(
        rate=rate * said["factor"],
        cost=said["cost"],
        slowdown=said["slowdown"],
        persist=said["persist"],
        step=said["step"],
        restart=said["restart"],
    )
    bounds = bounds_for(decides["rule"], here, budget=decides["budget"], max_loss=decides["max_loss"])
    again = {"rate": rate, "longest": bounds.longest}
    if said["measured"]:
        again |= {"price": bounds.price, "shortest": bounds.shortest}
    wrong = [
        f"{name} {said[name]!r} comes out as {value!r}"
        for name, value in again.items()
        if said[name] != value
    ]
    if event.reason.startswith(_BY_THE_RULE) and not (
        said["debt"] >= said["price"] and said["age"] >= said["shortest"]
    ):
        wrong.append("the rule would not have saved")
    return wrong
