"""A few bytes as a file of a checkpoint."""

from __future__ import annotations

import mmap

from holdfast.stores.base import PAGE


class BytesSource:
    """Satisfies ImageSource."""

    concurrent = True

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.size = len(data)
        # Page-aligned, as direct writes want it.
        self._pages = mmap.mmap(-1, max(-(-len(data) // PAGE) * PAGE, PAGE))
        self._pages[: len(data)] = data

    def view(self, start: int, stop: int) -> memoryview:
        return memoryview(self._pages)[start:stop]
