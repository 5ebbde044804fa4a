"""Read what a load plan asks for: only the digest chunks that hold it, each verified before it is used.

Several threads read at once. What cannot be read straight into its tensor waits in memory only until its last
chunk has come.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from holdfast.checkpoints.find import Found
from holdfast.checkpoints.ranges import chunks_of, read_chunks
from holdfast.format.image import ImageLayout
from holdfast.stores.base import Store

Spans = Mapping[str, Mapping[str, tuple[int, int]]]


@dataclass
class Want:
    """Bytes [start, stop) of `file`. `into` gives the memory for them when the first has come, `done` is
    called once when all have; neither is ever called from two threads at once."""

    file: str
    start: int
    stop: int
    into: Callable[[], torch.Tensor]
    done: Callable[[], None]
    _memory: torch.Tensor | None = field(default=None, init=False)
    _missing: int = field(default=-1, init=False)

    def memory(self) -> torch.Tensor:
        if self._memory is None:
            self._memory = self.into()
        return self._memory

    def came(self, nbytes: int) -> None:
        self._missing = (self.stop - self.start if self._missing < 0 else self._missing) - nbytes
        if self._missing == 0:
            self.done()
            self._memory = None


def covering_span(shape: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]) -> tuple[int, int]:
    """From the first to behind the last element of a box inside a row-major tensor, in elements."""
    if not math.prod(lengths):
        return 0, 0
    strides = row_major(shape)
    first = sum(at * step for at, step in zip(offsets, strides, strict=True))
    extent = sum((length - 1) * step for length, step in zip(lengths, strides, strict=True))
    return first, first + extent + 1


def row_major(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]


def read_wanted(store: Store, found: Found, wants: Sequence[Want], spans: Spans, *, threads: int = 4) -> int:
    """Fill everything wanted and return how many bytes were read for it.

    CorruptCheckpoint names the file, the chunk and, by `spans`, the tensors in it.
    """
    for want in wants:
        if want.start == want.stop:
            want.done()
    by_chunk = chunks_of(found, wants)
    placing = threading.Lock()

    def take(name: str, index: int, start: int, chunk: memoryview) -> None:
        data = torch.frombuffer(chunk, dtype=torch.uint8)
        for want in by_chunk[name, index]:
            low, high = max(want.start, start), min(want.stop, start + len(chunk))
            with placing:
                memory = want.memory()
            memory[low - want.start : high - want.start].copy_(data[low - start : high - start])
            with placing:
                want.came(high - low)

    layouts = {name: ImageLayout(b"", 0, {}, named) for name, named in spans.items()}
    hint = "load an older one: HoldfastReader(path, step=...); see holdfast list"
    return read_chunks(store, found, by_chunk, take, threads=threads, layouts=layouts, hint=hint)
