"""What torch.distributed.checkpoint saved through HoldfastWriter, as the nested state it was, whole.

Not through DCP's own loading: that needs a state to load into.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from holdfast.capture.torch_leaves import TORCH_LEAVES, dtype_from_name, leaf_from_bytes
from holdfast.checkpoints.find import Found
from holdfast.checkpoints.read import require_manifest
from holdfast.contents.dcp import DcpPath, dcp_items
from holdfast.contents.tensors import StoredTensor, read_tensors
from holdfast.stores.base import Store


@dataclass(frozen=True, eq=False)
class _Coming:
    """Stands for a tensor until its bytes are here. `said` is the skeleton's entry, inside of objects."""

    stored: StoredTensor
    said: Mapping[str, Any] | None


def read_dcp_states(store: Store, found: Found) -> dict[str, Any]:
    items = list(dcp_items(require_manifest(found), TORCH_LEAVES, _Coming))
    coming = [one for _, value in items for one in _coming_in(value)]
    contents = read_tensors(store, found, [one.stored for one in coming])

    def made(one: _Coming) -> Any:
        raw = contents[one.stored]
        if one.said is None:
            return tensor_of(one.stored, raw)
        return leaf_from_bytes(dict(one.said), one.stored.code, one.said["dims"], _bytes(raw))

    root: dict[Any, Any] = {}
    for path, value in items:
        _put(root, path, _replaced(value, made))
    nested: dict[str, Any] = _with_lists(root)
    return nested


def tensor_of(stored: StoredTensor, raw: memoryview) -> torch.Tensor:
    return _bytes(raw).view(dtype_from_name(stored.kind)).reshape(stored.shape)


def _bytes(raw: memoryview) -> torch.Tensor:
    return torch.frombuffer(raw, dtype=torch.uint8) if len(raw) else torch.empty(0, dtype=torch.uint8)


def _coming_in(value: Any) -> list[_Coming]:
    if isinstance(value, _Coming):
        return [value]
    inside = value.values() if isinstance(value, dict) else value
    return [one for item in inside for one in _coming_in(item)] if _is_container(value) else []


def _replaced(value: Any, made: Callable[[_Coming], Any]) -> Any:
    if isinstance(value, _Coming):
        return made(value)
    if isinstance(value, dict):
        copy = value.copy()
        copy.update({key: _replaced(item, made) for key, item in value.items()})
        return copy
    return type(value)(_replaced(item, made) for item in value) if _is_container(value) else value


def _is_container(value: Any) -> bool:
    return type(value) in (list, tuple, set, frozenset) or isinstance(value, dict)


class _List(dict[Any, Any]):
    """A list whose items come in any order."""


def _put(root: dict[Any, Any], path: DcpPath, value: Any) -> None:
    at = root
    for step, following in itertools.pairwise(path):
        # DCP turns the keys of dicts into strings: a number is a place in a list.
        at = at.setdefault(step, _List() if isinstance(following, int) else {})
    at[path[-1]] = value


def _with_lists(value: Any) -> Any:
    if isinstance(value, _List):
        return [_with_lists(value[index]) for index in sorted(value)]
    return {key: _with_lists(item) for key, item in value.items()} if type(value) is dict else value
