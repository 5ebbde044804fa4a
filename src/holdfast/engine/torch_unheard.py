"""Training that cannot be saved, or not whole, is said aloud: each cause once, with the line to write."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from holdfast.clock import Clock
from holdfast.engine.torch_boundary import Boundary
from holdfast.engine.torch_steppers import Steppers
from holdfast.events import (
    AttemptEnded,
    Emit,
    Event,
    LastSign,
    Progress,
    RunEnded,
    RunStarted,
    SaveCommitted,
    SaveFailed,
    Warned,
)
from holdfast.units import format_seconds

log = logging.getLogger("holdfast")
# Boundaries to watch before a judgement: the first ones of a loop may be odd.
_FEW = 3


class Unheard:
    def __init__(self, boundary: Boundary, steppers: Steppers, clock: Clock, emit: Emit) -> None:
        self._boundary = boundary
        self._steppers = steppers
        self._clock = clock
        self._emit = emit
        self._looks = 0
        self._said: set[str] = set()

    def look(self) -> None:
        """At every boundary, and at steps that have waited for one too long."""
        self._looks += 1
        boundary = self._boundary
        if self._looks >= _FEW and (complaint := self._steppers.complaint()) is not None:
            # Whom the look at the loop has named is not said again; the journal hears of it all the same.
            self._say("untracked", complaint, aloud=not self._steppers.are_named)
        if boundary.unfenced_steps >= _FEW and not boundary.steps_told:
            self._say(
                "unfenced",
                f"the weights of {self._steppers.names()} move, but no step of an optimizer is seen (an "
                "update by hand, or a wrapper without torch's hooks): a boundary at which they moved counts "
                "as a step, and saves are copied in front of training; what that update remembers is saved "
                "only if holdfast.Run(...) was given the object that holds it",
            )
        if boundary.is_long_overdue:
            self._say_what_is_missing()

    def _say_what_is_missing(self) -> None:
        steps, pending = self._boundary.steps_without_boundary, self._boundary.pending_for
        if steps > pending:
            self._say(
                "no boundary",
                f"{steps} optimizer steps without a step boundary, so nothing of them is saved; call "
                "run.end_step() after each step, or take the batches from run.batches(loader)",
            )
        else:
            self._say(
                "pending",
                f"gradients are pending for {pending} boundaries, and no optimizer step has used them, so "
                "nothing was saved: a checkpoint would lose them; call optimizer.zero_grad() where they are "
                "not wanted, and give the optimizer that uses them to holdfast.Run(...); if a captured graph "
                "takes the steps, unheard, say so: run.end_step(stepped=True)",
            )

    def _say(self, cause: str, message: str, *, aloud: bool = True) -> None:
        if cause not in self._said:
            self._said.add(cause)
            if aloud:
                log.warning("holdfast: %s", message)
            self._emit(Warned(time=self._clock.wall(), message=message))


# ---- Attempts that begin where the one before began: the run makes no headway, and should say why. Pure.

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
