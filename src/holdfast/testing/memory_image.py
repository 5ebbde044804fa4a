"""Images without training: bytes in page-aligned memory, ready to be written by any store."""

from __future__ import annotations

import mmap

import numpy as np

from holdfast.format.image import TensorSpec, plan_image
from holdfast.stores.base import PAGE


class MemoryImage:
    """Satisfies ImageSource. What lies behind `size` is deliberately not zero: it must never be stored."""

    def __init__(self, name: str, content: bytes, *, concurrent: bool = True) -> None:
        self.name = name
        self.size = len(content)
        self.concurrent = concurrent
        self._memory = memoryview(mmap.mmap(-1, max(PAGE, -(-self.size // PAGE) * PAGE)))
        self._memory[: self.size] = content
        self._memory[self.size :] = b"\xee" * (len(self._memory) - self.size)

    def view(self, start: int, stop: int) -> memoryview:
        return self._memory[start:stop]


def image_of(step: int, *, name: str = "r00000-000.safetensors", values: int = 64) -> MemoryImage:
    """A valid image of two tensors whose every byte depends on `step`."""
    specs = [TensorSpec("layer.weight", "F32", (values,)), TensorSpec("layer.bias", "F32", (3,))]
    layout = plan_image(specs, {"step": str(step)})
    content = bytearray(layout.size)
    content[: layout.data_start] = layout.header
    numbers = np.random.default_rng(step).standard_normal(values + 3, dtype=np.float32)
    for tensor, taken in (("layer.weight", numbers[:values]), ("layer.bias", numbers[values:])):
        begin, end = layout.spans[tensor]
        content[begin:end] = taken.tobytes()
    return MemoryImage(name, bytes(content))
