"""Copy tensors to their places in an image: large ones by memmove, thousands of small ones in one call.

Both release the interpreter lock, so training goes on meanwhile. Nothing here decides when.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from holdfast.errors import InternalError
from holdfast.staging.slots import Slot

# Below this, the cost of a call outweighs the cost of the copy.
_SMALL_BYTES = 64 << 10
_BYTES_ONLY = frozenset(
    getattr(torch, name)
    for name in (f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8))
    if hasattr(torch, name)
)


class Placed(Protocol):
    """Where one tensor lies: bytes [start, stop) of image number `image`."""

    @property
    def image(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def lazy(self) -> bool: ...
    @property
    def label(self) -> str: ...


@dataclass(frozen=True)
class CopyGroup:
    """Positions of tensors that are copied together."""

    small: tuple[int, ...]
    large: tuple[int, ...]

    @staticmethod
    def of(positions: Sequence[int], places: Sequence[Placed]) -> CopyGroup:
        sizes = {i: places[i].stop - places[i].start for i in positions}
        return CopyGroup(
            small=tuple(i for i in positions if 0 < sizes[i] < _SMALL_BYTES and _is_copied(places[i])),
            large=tuple(i for i in positions if sizes[i] >= (_SMALL_BYTES if _is_copied(places[i]) else 1)),
        )


def _is_copied(place: Placed) -> bool:
    return place.dtype not in _BYTES_ONLY


def source_of(tensor: torch.Tensor) -> torch.Tensor:
    """What to copy of a tensor: its bytes, where torch can hold a type and not copy it (1 to 7 bits)."""
    return tensor.view(torch.uint8) if tensor.dtype in _BYTES_ONLY else tensor


def host_view(slot: Slot, place: Placed) -> torch.Tensor:
    """The bytes of `place` as a tensor of its own type and shape, for what `source_of` gives."""
    memory = slot.images[place.image].memory.view
    flat = torch.frombuffer(memory, dtype=torch.uint8)[place.start : place.stop]
    return flat.view(place.dtype if _is_copied(place) else torch.uint8).view(place.shape)


def copy_group(
    group: CopyGroup, places: Sequence[Placed], tensors: Sequence[torch.Tensor], slot: Slot
) -> None:
    """Copy host tensors into the slot, on the calling thread."""
    with torch.no_grad():
        for i in group.large:
            _copy_large(places[i], tensors[i], slot)
        if group.small:
            key = ("small", group.small)
            views = slot.views.get(key)
            if views is None:
                views = slot.views[key] = [host_view(slot, places[i]) for i in group.small]
            torch._foreach_copy_(views, [tensors[i] for i in group.small])


def _copy_large(place: Placed, tensor: torch.Tensor, slot: Slot) -> None:
    nbytes = place.stop - place.start
    if tensor.nbytes != nbytes:
        raise InternalError(f"{place.label} has {tensor.nbytes} bytes where {nbytes} were planned")
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        memory = slot.images[place.image].memory.view
        target = ctypes.addressof(ctypes.c_char.from_buffer(memory, place.start))
        ctypes.memmove(target, tensor.data_ptr(), nbytes)
    else:
        # Row by row in logical order, conjugation and negation resolved: what any safetensors reader expects.
        host_view(slot, place).copy_(source_of(tensor))
