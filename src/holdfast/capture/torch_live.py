"""What stands now where a stored tensor belongs: it decides which part of the tensor this rank needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from holdfast.capture.torch_groups import Ranks, replicated
from holdfast.capture.torch_module import TrackedModule
from holdfast.capture.torch_optimizer import TrackedOptimizer
from holdfast.capture.torch_reader import Live
from holdfast.capture.torch_registry import Tracked
from holdfast.capture.torch_shards import is_sharded

_OPTIMIZER_STATE = ("state_dict", "state")


def live_leaves(tracked: Sequence[Tracked]) -> Live:
    """Looks up the live leaf of a path. For what an optimizer has not made yet, the parameter it belongs to:
    moments are spread over ranks as their parameter is."""
    items = {item.key: item for item in tracked}
    states: dict[str, Any] = {}

    def live(path: tuple[Any, ...], shape: Sequence[int] | None) -> Any:
        item = items.get(path[0])
        if item is None:
            return None
        if isinstance(item, TrackedOptimizer) and path[1:3] == _OPTIMIZER_STATE:
            return _parameter(item, path, shape)
        if item.key not in states:
            states[item.key] = item.take()
        return _follow(states[item.key], path[1:])

    return live


def live_groups(tracked: Sequence[Tracked]) -> dict[int, Ranks]:
    """The ranks that keep each parameter equal now, by its id."""
    modules = [item for item in tracked if isinstance(item, TrackedModule)]
    return replicated(modules, [item for item in tracked if isinstance(item, TrackedOptimizer)])


def has_shards(tracked: Sequence[Tracked]) -> bool:
    """Whether a live parameter or value is spread over ranks."""

    def any_in(value: Any) -> bool:
        if isinstance(value, Mapping):
            return any(map(any_in, value.values()))
        return any(map(any_in, value)) if isinstance(value, (list, tuple)) else is_sharded(value)

    return any(any_in(item.take()) for item in tracked)


def _parameter(item: TrackedOptimizer, path: tuple[Any, ...], shape: Sequence[int] | None) -> Any:
    parameters = [p for group in item.optimizer.param_groups for p in group["params"]]
    index = path[3] if len(path) > 3 else None
    if not isinstance(index, int) or not 0 <= index < len(parameters):
        return None
    parameter: torch.Tensor = parameters[index]
    # Of what is not of its shape, such as a counter, nothing is known.
    return parameter if shape is not None and tuple(parameter.shape) == tuple(shape) else None


def _follow(value: Any, path: Sequence[Any]) -> Any:
    for part in path:
        if isinstance(value, torch.Tensor):
            return None  # The path goes on into what it is made of.
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value
