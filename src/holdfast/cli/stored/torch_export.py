"""Verified states as files of torch itself. Everything here has been checked before it is written.

torch's own formats are pickles; we write them for others to read, and never read them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from holdfast.capture.torch_inflate import inflate_image
from holdfast.checkpoints.find import Found
from holdfast.checkpoints.read import read_files, require_manifest
from holdfast.cli.stored.torch_dcp_states import read_dcp_states, tensor_of
from holdfast.contents.dcp import is_dcp
from holdfast.contents.tensors import read_tensors
from holdfast.contents.weights import Weights
from holdfast.engine.torch_sharded_load import load_sharded
from holdfast.stores.base import Store


def read_states(store: Store, found: Found) -> dict[str, Any]:
    """Every tracked object's state, whole; what ranks hold for themselves is rank 0's."""
    manifest = require_manifest(found)
    if is_dcp(manifest):
        return read_dcp_states(store, found)
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
    return {name: tensor_of(tensor, contents[tensor]) for name, tensor in weights.tensors.items()}


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
