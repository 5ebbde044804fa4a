"""Training that cannot be saved, or not whole, is said aloud: each cause once, with the line to write."""

from __future__ import annotations

import logging

from holdfast.clock import Clock
from holdfast.engine.torch_boundary import Boundary
from holdfast.engine.torch_steppers import Steppers
from holdfast.events import Emit, Warned

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
