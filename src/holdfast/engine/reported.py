"""What the loop reports about its steps: the loss and other numbers, for checkpoints and the policy."""

from __future__ import annotations

import math
from typing import Any


class Reported:
    """A loss that is a tensor is kept as one, and read only when somebody needs the number: reading it makes
    an accelerator wait."""

    def __init__(self) -> None:
        self._loss: Any = None
        self._metrics: dict[str, float] = {}

    def note(self, loss: Any, metrics: dict[str, float]) -> None:
        if loss is not None:
            self._loss = loss.detach() if hasattr(loss, "detach") else loss
        if metrics:
            self._metrics.update(metrics)

    @property
    def has_loss(self) -> bool:
        return self._loss is not None

    def loss(self) -> float:
        try:
            return float(self._loss)
        except (TypeError, ValueError, RuntimeError):
            return math.nan

    def loss_or_none(self) -> float | None:
        return self.loss() if self.has_loss else None

    def numbers(self) -> dict[str, float]:
        """For a manifest."""
        return {**self._metrics, **({"loss": self.loss()} if self.has_loss else {})}
