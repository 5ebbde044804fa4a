"""Gradients that wait for a step of their optimizer, while another one steps: a checkpoint would lose them.

Not those that a step has used and nobody has cleared yet. Told apart only for optimizers that were seen to
sit out: where all step at every boundary, nothing is looked at.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

log = logging.getLogger("holdfast")
# Boundaries at which others stepped. A loop that never uses these gradients must still be saved.
_PATIENCE = 128

# The gradient and how often it was written, when its step had used it.
_Used = dict[int, tuple[Any, int]]


class Gradients:
    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._used: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Used] = weakref.WeakKeyDictionary()
        self._waited: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()

    def any(self) -> bool:
        """Whether there are gradients at all."""
        return any(p.grad is not None for optimizer in self._optimizers for p in _parameters(optimizer))

    def wait_beside(self, stepped: Sequence[torch.optim.Optimizer]) -> bool:
        """Whether an optimizer has gradients that it has not used, where `stepped` have used theirs."""
        return any(True for _ in self._waiting(stepped))

    def passed(self, stepped: Sequence[torch.optim.Optimizer]) -> None:
        """A boundary: remember what these have used, and how long the others wait."""
        for optimizer in stepped:
            if optimizer in self._waited:
                self._used[optimizer] = {
                    id(p): (TensorWeakRef(p.grad), p.grad._version)
                    for p in _parameters(optimizer)
                    if p.grad is not None
                }
                self._waited[optimizer] = 0
        for optimizer in list(self._waiting(stepped)):
            waited = self._waited[optimizer] = self._waited.get(optimizer, 0) + 1
            if waited == _PATIENCE:
                log.warning(
                    "holdfast: %s has gradients and has not stepped for %d boundaries at which another "
                    "optimizer did; checkpoints are saved without them from here on; clear them with "
                    "zero_grad() if they are not wanted",
                    type(optimizer).__name__,
                    waited,
                )

    def _waiting(self, stepped: Sequence[torch.optim.Optimizer]) -> Iterator[torch.optim.Optimizer]:
        shared: set[int] | None = None
        for optimizer in self._optimizers:
            if any(optimizer is one for one in stepped) or self._waited.get(optimizer, 0) >= _PATIENCE:
                continue
            with_gradients = [p for p in _parameters(optimizer) if p.grad is not None]
            if with_gradients and shared is None:
                # One optimizer inside another (SAM): the gradients are both's.
                shared = {id(p) for one in stepped for p in _parameters(one)}
            used = self._used.get(optimizer, {})
            if any(id(p) not in (shared or ()) and not _is_used(p, used) for p in with_gradients):
                yield optimizer


def _is_used(parameter: torch.Tensor, used: _Used) -> bool:
    gradient, version = used.get(id(parameter), (None, 0))
    now = parameter.grad
    return gradient is not None and now is not None and gradient() is now and now._version == version


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])
