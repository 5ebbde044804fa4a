"""Attempts that begin where the one before began: the run makes no headway, and should say why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from holdfast.events import (
    AttemptEnded,
    Event,
    LastSign,
    Progress,
    RunEnded,
    RunStarted,
    SaveCommitted,
    SaveFailed,
)
from holdfast.units import format_seconds

# Two may be chance.
ENOUGH = 3


@dataclass
class _Attempt:
    step: int
    began: float
    reached: int
    last: float
    cause: str = ""
    planned: bool = False
    failed_saves: list[str] = field(default_factory=list)


def standing_still(events: Sequence[Event], step: int) -> str | None:
    """What to say to a run that starts at `step` once more; None while it gets on."""
    attempts = _attempts(events)
    stuck: list[_Attempt] = []
    for attempt in reversed(attempts):
        if attempt.step != step or attempt.planned:
            break
        stuck.append(attempt)
    if len(stuck) < ENOUGH:
        return None
    lived = format_seconds(median(one.last - one.began for one in stuck))
    cause = f" (the last one: {stuck[0].cause})" if stuck[0].cause else ""
    said = (
        f"{len(stuck)} attempts in a row began at step {step} and ended, most of them after {lived}, "
        f"without a new checkpoint{cause}"
    )
    ends = {one.reached for one in stuck}
    if stuck[0].failed_saves:
        return f"{said}. Saves were tried and failed: {stuck[0].failed_saves[-1]}"
    if len(ends) == 1 and ends != {step}:
        return (
            f"{said}. All of them ended at step {ends.pop()}: then the program or its data fails there, and "
            "no checkpoint helps; its own output says why"
        )
    durable = [event.persist_seconds for event in events if isinstance(event, SaveCommitted)]
    if durable and median(durable) > 0.3 * median(one.last - one.began for one in stuck):
        return (
            f"{said}. A save takes {format_seconds(median(durable))} to become durable, too long for that: "
            'a nearer tier would help, such as tiers=["memory", "run"] under `holdfast run`'
        )
    return f"{said}. It dies sooner than its first save is done; max_loss= can ask for an earlier one"


def _attempts(events: Sequence[Event]) -> list[_Attempt]:
    found: list[_Attempt] = []
    for event in events:
        if isinstance(event, RunStarted):
            found.append(_Attempt(event.step, event.time, event.step, event.time))
            continue
        if not found:
            continue
        now = found[-1]
        if isinstance(event, (Progress, LastSign, RunEnded)):
            now.reached, now.last = max(now.reached, event.step), max(now.last, event.time)
        if isinstance(event, RunEnded):
            now.planned = event.how != "error"
        elif isinstance(event, AttemptEnded):
            now.cause, now.planned = event.detail, event.planned
        elif isinstance(event, SaveFailed):
            now.failed_saves.append(event.error)
    return found
