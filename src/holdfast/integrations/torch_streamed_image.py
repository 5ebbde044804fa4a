"""An image that exists only chunk by chunk: assembled from tensors while it is written.

A save then needs no second copy of the state in memory, only a buffer for each writing thread.
"""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_right
from collections.abc import Mapping

import torch

from holdfast.checkpoints.read import allocate_pages
from holdfast.format.image import ImageLayout


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's values in row-major order as bytes, on its own device; a view wherever it can be."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)


class StreamedImage:
    """Satisfies ImageSource for stores that are done with one view before they ask for the next in the same
    thread: its buffer is used again."""

    concurrent = True

    def __init__(self, name: str, layout: ImageLayout, tensors: Mapping[str, torch.Tensor]) -> None:
        self.name = name
        self.size = layout.size
        self._header = layout.header
        spans = sorted((layout.spans[key], key) for key in tensors)
        self._pieces = [
            (start, stop, flat_bytes(tensors[key])) for (start, stop), key in spans if start < stop
        ]
        self._starts = [start for start, _, _ in self._pieces]
        self._buffers = threading.local()

    def view(self, start: int, stop: int) -> memoryview:
        buffer = self._buffer(stop - start)
        if start < len(self._header):
            head = self._header[start:stop]
            buffer[: len(head)] = head
        # The piece before may reach into this range.
        number = max(bisect_right(self._starts, start) - 1, 0)
        while number < len(self._pieces) and self._pieces[number][0] < stop:
            begin, end, data = self._pieces[number]
            low, high = max(begin, start), min(end, stop)
            if low < high:
                _copy(data, low - begin, high - begin, buffer, low - start)
            number += 1
        return buffer

    def _buffer(self, size: int) -> memoryview:
        kept: memoryview | None = getattr(self._buffers, "memory", None)
        if kept is None or len(kept) < size:
            kept = self._buffers.memory = allocate_pages(size)
        return kept[:size]


def _copy(data: torch.Tensor, low: int, high: int, buffer: memoryview, at: int) -> None:
    if data.device.type == "cpu":
        target = ctypes.addressof(ctypes.c_char.from_buffer(buffer, at))
        ctypes.memmove(target, data.data_ptr() + low, high - low)
    else:
        torch.frombuffer(buffer, dtype=torch.uint8)[at : at + high - low].copy_(data[low:high])
