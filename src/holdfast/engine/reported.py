"""What the loop reports about its steps: the loss and other numbers, for checkpoints and the policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class Reported:
    """A loss that is a tensor is kept as one, and read only when somebody needs the number: reading it makes
    an accelerator wait."""

    def __init__(self) -> None:
        self._loss: Any = None
        self._at = -1
        # Of this step alone. A validation loss of earlier weights, carried on, would make later ones "best".
        self._numbers: dict[str, Any] = {}

    def note(self, step: int, loss: Any, metrics: Mapping[str, Any]) -> None:
        if step != self._at:
            self._at, self._numbers = step, {}
        if loss is not None:
            self._loss = self._numbers["loss"] = _alone(loss)
        if metrics:
            self._numbers.update({name: _alone(value) for name, value in metrics.items()})

    @property
    def has_loss(self) -> bool:
        return self._loss is not None

    def loss(self) -> float:
        return _number(self._loss)

    def loss_or_none(self) -> float | None:
        return self.loss() if self.has_loss else None

    def is_not_finite(self) -> bool:
        """Whether the newest loss is NaN or infinite. Reads it: for saves, not for every step."""
        return self.has_loss and not math.isfinite(self.loss())

    def numbers(self, step: int) -> dict[str, float]:
        """What was reported of this step, for its manifest."""
        return {name: _number(value) for name, value in self._numbers.items()} if step == self._at else {}


def _alone(value: Any) -> Any:
    """Without the graph that computed it, which holds every activation of its step."""
    return value.detach() if hasattr(value, "detach") else value


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return math.nan
