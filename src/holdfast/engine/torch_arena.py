"""Memory for many restored tensors: a few large blocks in huge pages instead of a page fault per 4 KiB."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from holdfast.staging.slots import anonymous_memory

_BLOCK_BYTES = 64 << 20
# Smaller ones are quicker from the allocator, and would keep a block alive for a few bytes.
_SMALLEST_BYTES = 64 << 10
_ALIGNMENT = 64


class Arena:
    """A block lives as long as one of its tensors. Not for several threads."""

    def __init__(self) -> None:
        self._block: torch.Tensor | None = None
        self._used = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        count = math.prod(shape) * dtype.itemsize
        if count < _SMALLEST_BYTES:
            return torch.empty(shape, dtype=dtype)
        if self._block is None or self._used + count > self._block.numel():
            # Needed by forked children, too: a data loader's worker may hold the dataset that holds it.
            memory = anonymous_memory(max(count, _BLOCK_BYTES), children_need_it=True)
            self._block, self._used = torch.frombuffer(memory.view, dtype=torch.uint8), 0
        raw = self._block[self._used : self._used + count]
        self._used += -(-count // _ALIGNMENT) * _ALIGNMENT
        return raw.view(dtype).view(*shape)
