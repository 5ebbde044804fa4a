"""The optimizers that move tracked parameters: those that were given to `Run`, and those that were not.

torch tells of the steps of every optimizer. So one that was made anew inside the loop, or one inside another
(SAM), is fenced and heard like a tracked one; that its state is not saved is said aloud.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from holdfast.capture.torch_module import TrackedModule
from holdfast.capture.torch_object import TrackedObject
from holdfast.capture.torch_optimizer import TrackedOptimizer
from holdfast.capture.torch_plan import take_parts
from holdfast.capture.torch_registry import Tracked
from holdfast.errors import HoldfastError


class Steppers:
    """Asked at every step of every optimizer in this process: `optimizer in steppers`."""

    def __init__(self, tracked: Sequence[Tracked]) -> None:
        self._tracked = tracked
        self._mine = [t.optimizer for t in tracked if isinstance(t, TrackedOptimizer)]
        self._known: weakref.WeakKeyDictionary[torch.optim.Optimizer, bool] = weakref.WeakKeyDictionary()
        self._strangers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._said = False
        # Those that the look at the loop has told of, with name and line.
        self.named: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def __contains__(self, optimizer: object) -> bool:
        if not isinstance(optimizer, torch.optim.Optimizer):
            return False
        known = self._known.get(optimizer)
        if known is None:
            known = self._known[optimizer] = self._concerns_us(optimizer)
        return known

    def __iter__(self) -> Iterator[torch.optim.Optimizer]:
        yield from self._mine
        yield from self._strangers

    def weights(self) -> list[torch.Tensor]:
        """Every tracked parameter that is trained, each once."""
        found = {id(p): p for optimizer in self for p in _parameters(optimizer) if p.requires_grad}
        for item in self._tracked:
            if isinstance(item, TrackedModule):
                found.update((id(p), p) for p in item.module.parameters() if p.requires_grad)
        return list(found.values())

    def _concerns_us(self, optimizer: torch.optim.Optimizer) -> bool:
        if any(optimizer is mine for mine in self._mine):
            return True
        ours = {id(p) for p in self.weights()}
        if not any(id(p) in ours for p in _parameters(optimizer)):
            return False
        self._strangers.add(optimizer)
        return True

    def complaint(self) -> str | None:
        """What to say of optimizers whose state is in no checkpoint: once, when they have stepped."""
        if self._said or not self._strangers:
            return None
        self._said = True
        unsaved = [optimizer for optimizer in self._strangers if not self._is_saved(optimizer)]
        if not unsaved:
            return None
        kinds = ", ".join(sorted({type(optimizer).__name__ for optimizer in unsaved}))
        advice = "give it to the run: holdfast.Run(..., optimizer=optimizer)"
        if self._mine:
            advice += (
                "; if it was made anew inside the loop, change the tracked one instead "
                "(optimizer.param_groups[0]['lr'] = ..., optimizer.state.clear())"
            )
        return (
            f"{kinds} moves parameters of {self.names()}, but it is not tracked: its state is in no "
            f"checkpoint, and a restart goes on without it; {advice}"
        )

    @property
    def are_named(self) -> bool:
        return all(optimizer in self.named for optimizer in self._strangers)

    def names(self) -> str:
        names = [repr(t.key) for t in self._tracked if isinstance(t, TrackedModule)]
        return ", ".join(names) or "the tracked optimizers"

    def _is_saved(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a tracked object carries its state, as a wrapper whose `state_dict` is the inner one's."""
        state = {id(v) for entry in optimizer.state.values() for v in _values(entry)}
        if not state:
            holders = (t.obj for t in self._tracked if isinstance(t, TrackedObject))
            return any(value is optimizer for holder in holders for value in _values(vars_of(holder)))
        try:
            parts = take_parts(self._tracked)
        except (HoldfastError, RuntimeError):
            return True  # Not the time to complain: the save itself will say what is wrong.
        return any(id(tensor) in state for part in parts for tensor in part.flat.tensors)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])


def _values(entry: Any) -> list[Any]:
    return list(entry.values()) if isinstance(entry, dict) else []


def vars_of(holder: Any) -> dict[str, Any]:
    return getattr(holder, "__dict__", {})
