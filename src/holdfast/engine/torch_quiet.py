"""Large tensors that no optimizer steps and that nothing changes between a boundary and the next step: frozen
weights, a teacher, an average of the weights that is updated right behind the optimizer.

They are copied behind training like those that the fence protects, watched by their version and by a sample
of their bytes. A momentum encoder, which is moved by the forward pass, is never the same at the next step as
at the boundary and stays among those that are copied there.
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
# Saves behind which it stayed as it was until the next step, or until the next save.
_BELIEVED = 2
_SPOTS = 8
_SPOT_BYTES = 16


@dataclass
class _Seen:
    tensor: weakref.ref[torch.Tensor]
    held: weakref.ref[torch.Tensor]
    note: tuple[Any, ...]
    times: int = 0
    # Whether it was the same when the next optimizer step began; None while none has.
    stayed: bool | None = None


class Quiet:
    """Used by the training thread only."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._awaits_step = False

    def step_begins(self) -> None:
        """The fence: the first step behind a save. Costs nothing at others."""
        if not self._awaits_step:
            return
        self._awaits_step = False
        for one in self._seen.values():
            counter, tensor = one.tensor(), one.held()
            if counter is None or tensor is None or not one.note:
                continue
            if one.times >= _BELIEVED:
                # The snapshot itself compares the bytes.
                one.stayed = one.note[:2] == (tensor._version, counter._version)
            else:
                one.stayed = one.note == _note(tensor, counter)

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
            times = 0
            if note and last is not None and last.tensor() is counter:
                stayed = last.note == note if last.stayed is None else last.stayed
                times = last.times + 1 if stayed else 0
            seen[id(counter)] = _Seen(weakref.ref(counter), weakref.ref(tensor), note, times)
        self._seen, self._awaits_step = seen, bool(seen)
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
