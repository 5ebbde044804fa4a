"""Where in a step the loop is: may a save start here, or would it tear apart what belongs together?"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import torch

from holdfast.engine.torch_gradients import Gradients
from holdfast.engine.torch_weight_watch import WeightWatch

# So many boundaries, or optimizer steps, beyond what is usual in this loop: then it is no longer waiting for
# something that will come.
_PATIENCE = 16


class Boundary:
    """Told by the loop and by the optimizers' hooks; asked by the session. `watch` looks at the weights where
    no hook tells of their steps."""

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer], watch: WeightWatch) -> None:
        # The one that trains: that which opens the run, until another one is seen to step.
        self.thread = threading.get_ident()
        self._gradients = Gradients(optimizers)
        self._watch = watch
        # Those that stepped since the last boundary; True where something did that no hook tells of.
        self._stepped: list[torch.optim.Optimizer | bool] = []
        self.optimizer_steps = 0
        # A batch that training steps on has been handed out.
        self.in_batch = False
        # The loop calls `end_step` itself.
        self.ended_by_hand = False
        # At the last boundary no gradients were being accumulated.
        self.is_clean = True
        # Steps that were found by looking at the weights: nothing fences those.
        self.unfenced_steps = 0
        # The loop itself tells of them.
        self.steps_told = False
        self._hooks_work = False
        self._moves = 0
        # In a row: boundaries at which gradients were pending, and optimizer steps without a boundary.
        self.pending_for = 0
        self.steps_without_boundary = 0
        self._longest = 0
        self._most_steps = 0

    @property
    def stepped(self) -> bool:
        """An optimizer stepped since the last boundary."""
        return bool(self._stepped)

    @stepped.setter
    def stepped(self, value: bool) -> None:
        self._stepped = [True] if value else []

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        if not any(optimizer is one for one in self._stepped):
            self._stepped.append(optimizer)
        self.optimizer_steps += 1
        self.steps_without_boundary += 1
        self._hooks_work = True
        self.thread = threading.get_ident()
        self._watch.forget()

    def passed(self, *, stepped: bool = False) -> None:
        """The loop says that a step is complete; with `stepped`, that it was taken whatever hooks say."""
        if stepped and not self.stepped:
            self.stepped = True
            self.optimizer_steps += 1
            # Nothing holds such a step back while a copy is under way.
            self.unfenced_steps += 1
            self.steps_told = True
        heard = self._which_stepped()
        self.is_clean = (
            not self._gradients.wait_beside(heard)
            if heard
            else self.stepped or not self._gradients.any() or self._moved()
        )
        self._gradients.passed(heard)
        self._most_steps = max(self._most_steps, self.steps_without_boundary)
        self.stepped = self.in_batch = False
        self.steps_without_boundary = 0
        self._count_pending(not self.is_clean)

    def batch_begins(self, *, is_trained_on: bool) -> None:
        self.stepped = False
        # A loader that training steps on; one that is only looked at (validation) opens no step.
        self.in_batch = self.in_batch or is_trained_on
        if not self._hooks_work:
            self._watch.look()

    def batch_ended(self) -> None:
        """The next batch is wanted, and no boundary has come. Was there a step that no hook told of?"""
        if not self.stepped and not self._hooks_work and self._moved():
            self.stepped = True
            self.optimizer_steps += 1
        if self.in_batch and not self.stepped:
            self._count_pending(True)

    @property
    def is_here(self) -> bool:
        """Whether model, optimizer and data position belong together: no gradients are being accumulated,
        also where the loop never calls `end_step`."""
        if stepped := self._which_stepped():
            return not self._gradients.wait_beside(stepped)
        return self.stepped or (self.is_clean and not (self.in_batch and self._gradients.any()))

    @property
    def is_overdue(self) -> bool:
        """No boundary comes where one should have come long ago: who must stop does not wait for it."""
        return (
            self.pending_for > 2 * self._longest + _PATIENCE
            or self.steps_without_boundary > 2 * self._most_steps + _PATIENCE
        )

    @property
    def is_long_overdue(self) -> bool:
        """So long that it is worth telling."""
        return self.pending_for > 4 * (self._longest + _PATIENCE) or self.steps_without_boundary > 4 * (
            self._most_steps + _PATIENCE
        )

    def _count_pending(self, is_pending: bool) -> None:
        if is_pending:
            self.pending_for += 1
        else:
            self._longest = max(self._longest, self.pending_for)
            self.pending_for = 0

    def _moved(self) -> bool:
        self._moves += (moved := self._watch.look())
        # Once may be an initialisation that depends on the first batch.
        is_step = moved and self._moves > 1
        self.unfenced_steps += is_step
        return is_step

    def _which_stepped(self) -> list[torch.optim.Optimizer]:
        return [one for one in self._stepped if isinstance(one, torch.optim.Optimizer)]
