"""Where in a step the loop is: may a save start here, or would it tear apart what belongs together?"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Boundary:
    """Told by the loop and by the optimizers' hooks; asked by the session."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        # An optimizer stepped since the last boundary.
        self.stepped = False
        self.optimizer_steps = 0
        # A batch that training steps on has been handed out.
        self.in_batch = False
        # At the last boundary no gradients were being accumulated.
        self.is_clean = True

    def optimizer_stepped(self) -> None:
        self.stepped = True
        self.optimizer_steps += 1

    def passed(self) -> None:
        """The loop says that a step is complete."""
        self.is_clean = self.stepped or not self._gradients_pending()
        self.stepped = self.in_batch = False

    @property
    def is_here(self) -> bool:
        """Whether model, optimizer and data position belong together: no gradients are being accumulated,
        also where the loop never calls `end_step`."""
        return self.stepped or (self.is_clean and not (self.in_batch and self._gradients_pending()))

    def _gradients_pending(self) -> bool:
        """Whether gradients are being accumulated: a checkpoint would lose them."""
        return any(
            p.grad is not None for o in self._optimizers for group in o.param_groups for p in group["params"]
        )
