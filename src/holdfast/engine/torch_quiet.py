"""Large tensors that no optimizer steps and that were the same at the last saves: frozen weights, a teacher.

They are copied behind training like those that the fence protects, watched by their version and by a sample
of their bytes. A momentum encoder, which is frozen as well and moved by the forward pass, is never the same
at two saves and stays among those that are copied at the boundary.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

# Below this a copy at the boundary costs less than to think about it.
WORTH_IT_BYTES = 64 << 10
# Saves at which it was as at the one before.
_BELIEVED = 2
_SPOTS = 8
_SPOT_BYTES = 16


@dataclass
class _Seen:
    tensor: weakref.ref[torch.Tensor]
    note: tuple[Any, ...]
    times: int = 0


class Quiet:
    """Used by the training thread only."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def look(
        self, tensors: Sequence[torch.Tensor], counters: Mapping[int, torch.Tensor], among: Iterable[int]
    ) -> bool:
        """Compare those `among` the tensors with the last save. Whether others are quiet now than before."""
        before = self.ids()
        seen: dict[int, _Seen] = {}
        for i in among:
            tensor = tensors[i]
            counter = counters.get(i, tensor)
            note = _note(tensor, counter)
            last = self._seen.get(id(counter))
            same = last is not None and last.tensor() is counter and last.note == note
            times = last.times + 1 if same and last is not None and note else 0
            seen[id(counter)] = _Seen(weakref.ref(counter), note, times)
        self._seen = seen
        return self.ids() != before

    def ids(self) -> set[int]:
        return {
            ident for ident, one in self._seen.items() if one.times >= _BELIEVED and one.tensor() is not None
        }


def _note(tensor: torch.Tensor, counter: torch.Tensor) -> tuple[Any, ...]:
    """Empty for one whose bytes cannot be sampled: it is never quiet."""
    if tensor.is_inference() or counter.is_inference() or tensor.is_conj() or tensor.is_neg():
        return ()
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        return ()
    start, last = tensor.data_ptr(), tensor.nbytes - _SPOT_BYTES
    spots = (ctypes.string_at(start + last * k // (_SPOTS - 1), _SPOT_BYTES) for k in range(_SPOTS))
    return tensor._version, counter._version, start, *spots
