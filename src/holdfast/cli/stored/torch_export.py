"""Verified states as files of torch itself. Everything here has been checked before it is written.

torch's own formats are pickles; we write them for others to read, and never read them.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from holdfast.capture.torch_inflate import inflate_image
from holdfast.capture.torch_leaves import TORCH_LEAVES, dtype_from_name, leaf_from_bytes
from holdfast.checkpoints.find import Found
from holdfast.checkpoints.read import read_files, require_manifest
from holdfast.contents.dcp import DcpPath, dcp_items, is_dcp
from holdfast.contents.tensors import StoredTensor, read_tensors
from holdfast.contents.weights import Weights
from holdfast.engine.torch_sharded_load import load_sharded
from holdfast.stores.base import Store


def read_states(store: Store, found: Found) -> dict[str, Any]:
    """Every tracked object's state, whole; what ranks hold for themselves is rank 0's."""
    manifest = require_manifest(found)
    if is_dcp(manifest):
        return _dcp_states(store, found)
    if manifest.world > 1:
        return load_sharded(store, found, (), 0, manifest.world).states
    states: dict[str, Any] = {}
    for image in read_files(store, found).values():
        states |= inflate_image(image, manifest.values)
    return states


def read_model(store: Store, found: Found, key: str, file: str) -> Any:
    """One model's state. `file` holds it where one process saved it."""
    manifest = require_manifest(found)
    if manifest.world > 1:
        return load_sharded(store, found, (), 0, manifest.world, [key]).states[key]
    return inflate_image(read_files(store, found, [file])[file], manifest.values)[key]


def read_weights(store: Store, found: Found, weights: Weights) -> dict[str, torch.Tensor]:
    """Tensors by name, of a checkpoint that DCP saved."""
    contents = read_tensors(store, found, weights.tensors.values())
    return {name: _tensor_of(tensor, contents[tensor]) for name, tensor in weights.tensors.items()}


def write_torch_file(state: Any, file: BinaryIO) -> None:
    """The weights as `torch.load(..., weights_only=True)` likes them: a plain dict of tensors."""
    torch.save(_detached(state, {}), file)


def write_dcp(states: Mapping[str, Any], folder: Path) -> None:
    """Every tracked object, for torch.distributed.checkpoint."""
    whole = {key: _detached(_state_dict(state), {}) for key, state in states.items()}
    with warnings.catch_warnings():
        # It says that one process is enough, which is what we asked for.
        warnings.simplefilter("ignore")
        dcp_save(whole, checkpoint_id=folder, no_dist=True)


def _state_dict(state: Any) -> Any:
    """An optimizer's own state_dict, without the parameter names that capture keeps beside it."""
    # As TrackedOptimizer describes one.
    wrapped = isinstance(state, dict) and {"state_dict", "parameters"} <= state.keys()
    return state["state_dict"] if wrapped else state


def _detached(value: Any, seen: dict[int, torch.Tensor]) -> Any:
    """A copy with tensors of their own: torch.save writes all of the memory that a view looks at.

    One copy for each tensor, so that tied weights stay tied.
    """
    if isinstance(value, torch.Tensor):
        return seen.setdefault(id(value), value.clone())
    if isinstance(value, dict):
        copy = value.copy()  # of its own type, which may be a Counter or a defaultdict
        for key, item in value.items():
            copy[key] = _detached(item, seen)
        return copy
    if type(value) in (list, tuple):
        return type(value)(_detached(item, seen) for item in value)
    return value


# ---- what torch.distributed.checkpoint saved through HoldfastWriter


@dataclass(frozen=True, eq=False)
class _Coming:
    """Stands for a tensor until its bytes are here. `said` is the skeleton's entry, inside of objects."""

    stored: StoredTensor
    said: Mapping[str, Any] | None


def _dcp_states(store: Store, found: Found) -> dict[str, Any]:
    """The nested state as DCP was given it, whole. DCP's own loading needs a state to load into."""
    items = list(dcp_items(require_manifest(found), TORCH_LEAVES, _Coming))
    coming = [one for _, value in items for one in _coming_in(value)]
    contents = read_tensors(store, found, [one.stored for one in coming])

    def made(one: _Coming) -> Any:
        raw = contents[one.stored]
        if one.said is None:
            return _tensor_of(one.stored, raw)
        return leaf_from_bytes(dict(one.said), one.stored.code, one.said["dims"], _bytes(raw))

    root: dict[Any, Any] = {}
    for path, value in items:
        _put(root, path, _replaced(value, made))
    nested: dict[str, Any] = _with_lists(root)
    return nested


def _tensor_of(stored: StoredTensor, raw: memoryview) -> torch.Tensor:
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
