"""A few bytes of a few tensors, noted before an overlapped copy and compared with what was copied.

Sees what version counters do not: changes through `.data`, as when averaged weights are swapped in for
validation right after a step boundary. A sample, not a proof; it must stay cheap.
"""

from __future__ import annotations

import ctypes
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch

from holdfast.staging.slots import Slot
from holdfast.staging.torch_copy import CopyGroup, Placed

# A swap touches every parameter, so half of this many of the largest tensors and half spread over the order
# of copying (with the very last, so that a swap anywhere on the way is seen) are enough.
_TENSORS = 16
_SPOTS = 2
_SPOT_BYTES = 16

# Read straight from memory: a torch operation per spot would cost more than all the rest of a save.
Note = tuple[bytes, ...]


@dataclass(frozen=True)
class Guard:
    """Which tensors are sampled, and where in them. Made once per layout."""

    positions: tuple[int, ...]
    # Of each: (offset, length) of its spots.
    spots: tuple[tuple[tuple[int, int], ...], ...]

    @staticmethod
    def of(
        later: CopyGroup,
        places: Sequence[Placed],
        among: Container[int] | None = None,
        each: Container[int] = (),
    ) -> Guard:
        """`among` limits it to some tensors, such as the weights; `each` are sampled without exception."""
        everything = (*later.large, *later.small)
        order = tuple(i for i in everything if (among is None or i in among) and i not in each)
        if len(order) > _TENSORS:
            half = _TENSORS // 2
            largest = sorted(order, key=lambda i: places[i].start - places[i].stop)[:half]
            spread = (order[-1 - i * (len(order) - 1) // (half - 1)] for i in range(half))
            order = tuple(dict.fromkeys((*largest, *spread)))
        order = (*order, *(i for i in everything if i in each))
        return Guard(order, tuple(_spots(places[i]) for i in order))

    def note(self, tensors: Sequence[torch.Tensor]) -> list[Note | None]:
        """None for a tensor whose bytes are not copied in order."""
        return [_note(tensors[i], spots) for i, spots in zip(self.positions, self.spots, strict=True)]

    def gather(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """The spots of tensors on a device as one tensor there, for `gathered`: queued, not waited for."""
        flat = [t.detach().reshape(-1).view(torch.uint8) if _is_plain(t) else None for t in self._of(tensors)]
        spots = [
            one[offset : offset + length]
            for one, where in zip(flat, self.spots, strict=True)
            if one is not None
            for offset, length in where
        ]
        return torch.cat(spots) if spots else None

    def gathered(self, tensors: Sequence[torch.Tensor], spots: bytes) -> list[Note | None]:
        """The note that these bytes, gathered and brought to the host, stand for."""
        notes: list[Note | None] = []
        at = 0
        for tensor, where in zip(self._of(tensors), self.spots, strict=True):
            if not _is_plain(tensor):
                notes.append(None)
                continue
            ends = list(accumulate((length for _, length in where), initial=at))
            notes.append(tuple(spots[a:b] for a, b in pairwise(ends)))
            at = ends[-1]
        return notes

    def _of(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [tensors[i] for i in self.positions]

    def changed(self, noted: Sequence[Note | None], slot: Slot, places: Sequence[Placed]) -> list[int]:
        """The positions of tensors that were copied with other bytes than were noted."""
        found = []
        for i, spots, before in zip(self.positions, self.spots, noted, strict=True):
            if before is not None:
                image = slot.images[places[i].image].memory.view
                for (offset, length), expected in zip(spots, before, strict=True):
                    at = places[i].start + offset
                    if image[at : at + length] != expected:
                        found.append(i)
                        break
        return found


def _note(tensor: torch.Tensor, spots: tuple[tuple[int, int], ...]) -> Note | None:
    if not _is_plain(tensor):
        return None
    if not spots or sum(spots[-1]) > tensor.nbytes:
        return None  # Resized through `.data`: the walk will find out; reading past its end would not wait.
    start = tensor.data_ptr()
    return tuple([ctypes.string_at(start + offset, length) for offset, length in spots])


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _spots(place: Placed) -> tuple[tuple[int, int], ...]:
    size = place.stop - place.start
    offsets = range(0, size, max(-(-size // _SPOTS), _SPOT_BYTES))
    return tuple((offset, min(_SPOT_BYTES, size - offset)) for offset in offsets)
