"""A few numbers of a few tensors, noted before an overlapped copy and compared with what was copied.

Sees what version counters do not: changes through `.data`, as when averaged weights are swapped in for
validation right after a step boundary. A sample, not a proof; it must stay cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from holdfast.staging.slots import Slot
from holdfast.staging.torch_copy import CopyGroup, Placed, host_view

# A swap touches every parameter, so half of this many of the largest tensors and half spread over the order
# of copying (with the very last, so that a swap anywhere on the way is seen) are enough.
_TENSORS = 64
_NUMBERS = 16


@dataclass(frozen=True)
class Guard:
    """Which tensors are sampled. Made once per layout."""

    positions: tuple[int, ...]

    @staticmethod
    def of(later: CopyGroup, places: Sequence[Placed]) -> Guard:
        order = (*later.large, *later.small)
        if len(order) <= _TENSORS:
            return Guard(order)
        half = _TENSORS // 2
        largest = sorted(order, key=lambda i: places[i].start - places[i].stop)[:half]
        spread = (order[-1 - i * (len(order) - 1) // (half - 1)] for i in range(half))
        return Guard(tuple(dict.fromkeys((*largest, *spread))))

    def note(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        return [_sample(tensors[i]) for i in self.positions]

    def first_changed(
        self, noted: Sequence[torch.Tensor | None], slot: Slot, places: Sequence[Placed]
    ) -> int | None:
        """The position of a tensor that was copied with other numbers than were noted."""
        for i, before in zip(self.positions, noted, strict=True):
            if before is not None:
                copied = _sample(host_view(slot, places[i]))
                if copied is None or not torch.equal(copied, before):
                    return i
        return None


def _sample(tensor: torch.Tensor) -> torch.Tensor | None:
    """Some of its numbers as bytes, because NaN differs from itself; None where order and bytes differ."""
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return None
    flat = tensor.detach().view(-1)
    return flat[:: max(flat.numel() // _NUMBERS, 1)].clone().view(torch.uint8)
