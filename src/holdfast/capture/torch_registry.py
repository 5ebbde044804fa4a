"""The tracked objects of a run, and the order in which they are given back: models, optimizers, the rest,
randomness last, so that nothing that is restored later can draw from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from holdfast.capture.stateful import Stateful
from holdfast.capture.torch_module import TrackedModule
from holdfast.capture.torch_object import TrackedObject
from holdfast.capture.torch_optimizer import TrackedOptimizer
from holdfast.capture.torch_rng import TrackedRandomness
from holdfast.errors import IncompatibleState, SetupError

RESERVED = ("rng", "run")


class Tracked(Protocol):
    @property
    def key(self) -> str: ...

    @property
    def role(self) -> str: ...

    def take(self) -> Any: ...

    def check(self, state: Any) -> None: ...

    def apply(self, state: Any) -> None: ...


def track(objects: Mapping[str, Any], *, save_frozen: bool = True) -> list[Tracked]:
    """Adapters for the user's objects, in the order of restoring, without randomness."""
    if not objects:
        raise SetupError(
            "nothing to track", hint="pass objects by keyword: Run(path, model=model, optimizer=opt)"
        )
    objects = {key: _that_steps(obj) for key, obj in objects.items()}
    modules = [
        TrackedModule(k, o, save_frozen=save_frozen) for k, o in objects.items() if isinstance(o, nn.Module)
    ]
    optimizers = [TrackedOptimizer(k, o) for k, o in objects.items() if isinstance(o, torch.optim.Optimizer)]
    others = []
    for key, obj in objects.items():
        if key in RESERVED:
            raise SetupError(f"the name {key!r} is taken by holdfast itself", hint="use another keyword")
        if isinstance(obj, (nn.Module, torch.optim.Optimizer)):
            continue
        if isinstance(obj, type) or not isinstance(obj, Stateful):
            raise SetupError(
                f"cannot track {key!r}: {type(obj).__name__} has no state_dict() and load_state_dict()",
                hint="wrap it in an object that has both, or put plain values into run.extras",
            )
        others.append(TrackedObject(key, obj))

    def names() -> dict[int, str]:
        return {ident: name for module in modules for ident, name in module.parameter_names().items()}

    for optimizer in optimizers:
        optimizer.names = names
    return [*modules, *optimizers, *others]


def _that_steps(obj: Any) -> Any:
    """The optimizer inside a wrapper (Accelerate's, Lightning's): it has the moments and makes the steps."""
    seen = 0
    while isinstance(obj, torch.optim.Optimizer) and seen < 8:
        inner = getattr(obj, "optimizer", None)
        if not isinstance(inner, torch.optim.Optimizer) or inner is obj:
            break
        obj, seen = inner, seen + 1
    return obj


def restore_all(tracked: Iterable[Tracked], states: Mapping[str, Any]) -> None:
    """Give every state back, or raise IncompatibleState before anything was touched."""
    tracked = list(tracked)
    check_all(tracked, states)
    for item in tracked:
        item.apply(states[item.key])


def check_all(tracked: Iterable[Tracked], states: Mapping[str, Any]) -> None:
    """Raise IncompatibleState if a state is missing or does not fit. Touches nothing."""
    tracked = list(tracked)
    missing = [t.key for t in tracked if t.key not in states]
    if missing:
        raise IncompatibleState(
            f"the checkpoint lacks {', '.join(map(repr, missing))}; it holds {', '.join(map(repr, states))}",
            hint="track the same objects as when it was saved, or start in a new folder",
        )
    for item in tracked:
        item.check(states[item.key])


__all__ = ["RESERVED", "Tracked", "TrackedRandomness", "check_all", "restore_all", "track"]
