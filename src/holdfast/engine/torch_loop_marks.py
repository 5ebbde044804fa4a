"""A short mark of a value, to see whether it changed. Nothing of the user's runs: only `vars` is read.

`sampled` is for a look in passing: version counters and a few bytes, no more than microseconds a tensor.
`exact` reads every byte, for rehearsals.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Mapping
from types import FunctionType, GeneratorType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from holdfast.engine.plain_attributes import own

_SAMPLED_TENSORS = 16
_MOST_ITEMS = 64
_DEPTH = {False: 4, True: 16}


def sampled(value: Any) -> str:
    return _Marks(exact=False).of(value)


def exact(value: Any) -> str:
    return _Marks(exact=True).of(value)


class _Marks:
    def __init__(self, *, exact: bool) -> None:
        self._exact = exact
        self._digest = hashlib.blake2b(digest_size=8)
        # What is being looked into: it may hold itself. Two things that share a part are marked alike,
        # whether they share it or have equal ones, as after a restore.
        self._around: set[int] = set()
        self._tensors = 0

    def of(self, value: Any) -> str:
        self._add(value, 0)
        return self._digest.hexdigest()

    def _say(self, *what: Any) -> None:
        self._digest.update(repr(what).encode())

    def _add(self, value: Any, depth: int) -> None:
        if isinstance(value, (int, float, complex, str, bytes, type(None), np.generic)):
            self._say(type(value).__name__, value)
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray):
            self._array(value)
        elif isinstance(value, torch.Generator):
            self._digest.update(value.get_state().numpy().tobytes())
        elif isinstance(value, np.random.Generator):
            self._say(value.bit_generator.state)
        elif isinstance(value, np.random.RandomState):
            self._say(value.get_state(legacy=False))
        elif isinstance(value, random.Random):
            self._say(value.getstate())
        elif id(value) not in self._around and depth <= _DEPTH[self._exact]:
            self._around.add(id(value))
            self._inside(value, depth + 1)
            self._around.discard(id(value))

    def _inside(self, value: Any, depth: int) -> None:
        if isinstance(value, nn.Module):
            tensors = [*value.parameters(), *value.buffers()]
            if not self._exact and len(tensors) > _SAMPLED_TENSORS:
                self._say([_version(tensor) for tensor in tensors])
                tensors = tensors[:: len(tensors) // _SAMPLED_TENSORS]
            for tensor in tensors:
                self._tensor(tensor)
        elif isinstance(value, torch.optim.Optimizer):
            for group in value.param_groups:
                self._add({k: v for k, v in group.items() if k != "params"}, depth)
            self._say(len(value.state))
            for state in value.state.values():
                self._add(state, depth)
        elif isinstance(value, Mapping):
            self._say(len(value))
            for key, item in self._some(list(value.items())):
                self._say(key if isinstance(key, (str, int)) else type(key).__name__)
                self._add(item, depth)
        elif isinstance(value, (list, tuple, deque)):
            self._say(len(value))
            for item in self._some(list(value)):
                self._add(item, depth)
        elif isinstance(value, (set, frozenset)):
            self._say(len(value), sorted(map(repr, self._some(list(value)))))
        elif isinstance(value, GeneratorType):
            frame = value.gi_frame
            self._add({} if frame is None else {"at": frame.f_lasti, **_plain(frame.f_locals)}, depth)
        elif "_num_yielded" in own(value):
            self._say(own(value)["_num_yielded"])
        elif not isinstance(value, (type, FunctionType, ModuleType)):
            # A scheduler's optimizer is a thing of its own.
            parts = {k: v for k, v in own(value).items() if not isinstance(v, torch.optim.Optimizer)}
            self._add(parts, depth)

    def _some(self, items: list[Any]) -> list[Any]:
        if self._exact or len(items) <= _MOST_ITEMS:
            return items
        return items[: _MOST_ITEMS // 2] + items[-_MOST_ITEMS // 2 :]

    def _tensor(self, tensor: torch.Tensor) -> None:
        tensor = tensor.detach()
        if self._exact:
            self._say(str(tensor.dtype), tuple(tensor.shape))
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            if local.layout is torch.strided and local.device.type != "meta":
                flat = local.cpu().contiguous().reshape(-1)
                self._digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
            return
        self._say(_version(tensor))
        self._tensors += 1
        if self._tensors <= _SAMPLED_TENSORS and tensor.numel() and tensor.device.type != "meta":
            # A write through .data moves no version counter.
            at = (0,) * tensor.dim()
            self._say(tensor[at].item() if not hasattr(tensor, "to_local") else "")

    def _array(self, array: np.ndarray[Any, Any]) -> None:
        self._say(array.dtype.str, array.shape)
        if array.dtype != object:
            big = not self._exact and array.size > 4096
            self._digest.update(np.ascontiguousarray(array.reshape(-1)[:4096] if big else array).tobytes())


def _version(tensor: torch.Tensor) -> tuple[int, int]:
    try:
        return tensor.data_ptr(), tensor._version
    except RuntimeError:
        return -1, -1  # an inference tensor, a fake one


def _plain(names: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in names.items() if isinstance(value, (int, float, str))}
