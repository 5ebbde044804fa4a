"""Verified images as files of torch itself. Everything here has been checked before it gets here.

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


def write_torch_file(image: memoryview, values: Mapping[str, list[Any]], file: BinaryIO) -> None:
    """The weights as `torch.load(..., weights_only=True)` likes them: a plain dict of tensors."""
    # An image of weights holds one model and nothing else.
    (state,) = inflate_image(image, values).values()
    torch.save(_detached(state, {}), file)


def write_dcp(images: Mapping[str, memoryview], values: Mapping[str, list[Any]], folder: Path) -> None:
    """Every tracked object, for torch.distributed.checkpoint."""
    states: dict[str, Any] = {}
    for image in images.values():
        states |= inflate_image(image, values)
    whole = {key: _detached(_state_dict(state), {}) for key, state in states.items()}
    with warnings.catch_warnings():
        # It says that one process is enough, which is what we asked for.
        warnings.simplefilter("ignore")
        dcp_save(whole, checkpoint_id=folder, no_dist=True)


def _state_dict(state: Any) -> Any:
    """An optimizer's own state_dict, without the parameter names that capture keeps beside it."""
    wrapped = isinstance(state, dict) and set(state) == {"state_dict", "parameters"}
    return state["state_dict"] if wrapped else state


def _detached(value: Any, seen: dict[int, torch.Tensor]) -> Any:
    """A copy with tensors of their own: torch.save writes all of the memory that a view looks at.

    One copy for each tensor, so that tied weights stay tied.
    """
    if isinstance(value, torch.Tensor):
        return seen.setdefault(id(value), value.clone())
    if isinstance(value, dict):
        return type(value)((key, _detached(item, seen)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(_detached(item, seen) for item in value)
    return value
