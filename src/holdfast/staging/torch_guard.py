"""A few bytes of a few tensors, noted before an overlapped copy and compared with what was copied.

Sees what version counters do not: changes through `.data`, as when averaged weights are swapped in for
validation right after a step boundary. A sample, not a proof; it must stay cheap.
"""

from __future__ import annotations

import ctypes
from collections.abc import Container, Sequence
from dataclasses import dataclass

import torch

from holdfast.staging.slots import Slot
from holdfast.staging.torch_copy import CopyGroup, Placed

# A swap touches every parameter, so half of this many of the largest tensors and half spread over the order
# of copying (with the very last, so that a swap anywhere on the way is seen) are enough.
_TENSORS = 16
_SPOTS = 4
_SPOT_BYTES = 16

# Read straight from memory: a torch operation per spot would cost more than all the rest of a save.
Note = tuple[bytes, ...]


@dataclass(frozen=True)
class Guard:
    """Which tensors are sampled. Made once per layout."""

    positions: tuple[int, ...]

    @staticmethod
    def of(later: CopyGroup, places: Sequence[Placed], among: Container[int] | None = None) -> Guard:
        """`among` limits it to some tensors, such as the weights."""
        order = tuple(i for i in (*later.large, *later.small) if among is None or i in among)
        if len(order) <= _TENSORS:
            return Guard(order)
        half = _TENSORS // 2
        largest = sorted(order, key=lambda i: places[i].start - places[i].stop)[:half]
        spread = (order[-1 - i * (len(order) - 1) // (half - 1)] for i in range(half))
        return Guard(tuple(dict.fromkeys((*largest, *spread))))

    def note(self, tensors: Sequence[torch.Tensor], places: Sequence[Placed]) -> list[Note | None]:
        """None for a tensor whose bytes are not copied in order."""
        return [_note(tensors[i], places[i]) for i in self.positions]

    def first_changed(self, noted: Sequence[Note | None], slot: Slot, places: Sequence[Placed]) -> int | None:
        """The position of a tensor that was copied with other bytes than were noted."""
        for i, before in zip(self.positions, noted, strict=True):
            if before is not None:
                image = slot.images[places[i].image].memory.view
                for offset, expected in zip(_offsets(places[i]), before, strict=True):
                    at = places[i].start + offset
                    if image[at : at + len(expected)] != expected:
                        return i
        return None


def _note(tensor: torch.Tensor, place: Placed) -> Note | None:
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return None
    size, start = place.stop - place.start, tensor.data_ptr()
    return tuple(ctypes.string_at(start + o, min(_SPOT_BYTES, size - o)) for o in _offsets(place))


def _offsets(place: Placed) -> range:
    size = place.stop - place.start
    return range(0, size, max(-(-size // _SPOTS), _SPOT_BYTES))
