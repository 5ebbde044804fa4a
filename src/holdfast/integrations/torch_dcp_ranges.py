"""Read what a load plan asks for: only the digest chunks that hold it, each verified before it is used.

Several threads read at once. What cannot be read straight into its tensor waits in memory only until its last
chunk has come.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch

from holdfast.checkpoints.find import Found
from holdfast.checkpoints.read import allocate_pages, damaged_text, open_checked, require_manifest
from holdfast.errors import CorruptCheckpoint
from holdfast.format.checksum import chunk_span, digest
from holdfast.format.image import ImageLayout
from holdfast.format.manifest import FileRecord
from holdfast.stores.base import Store, StoredFile
from holdfast.stores.side_by_side import side_by_side

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
    records = {record.name: record for record in require_manifest(found).files}
    by_chunk: dict[tuple[str, int], list[Want]] = defaultdict(list)
    for want in wants:
        if want.start == want.stop:
            want.done()
            continue
        if want.stop > records[want.file].size:
            raise CorruptCheckpoint(f"{found.name} promises more of {want.file} than there is")
        size = records[want.file].chunk_bytes
        for index in range(want.start // size, (want.stop - 1) // size + 1):
            by_chunk[want.file, index].append(want)
    work = sorted(by_chunk)
    placing = threading.Lock()
    buffers = threading.local()
    with ExitStack() as opened:
        # All of them before the first byte: a pruner may take the names away, but not what is open.
        files: dict[str, StoredFile] = {}
        for name in sorted({name for name, _ in work}):
            files[name] = open_checked(store, found, records[name])
            opened.callback(files[name].close)

        def read_chunk(number: int) -> None:
            name, index = work[number]
            record = records[name]
            start, stop = chunk_span(index, record.size, record.chunk_bytes)
            if getattr(buffers, "size", 0) < stop - start:
                buffers.memory, buffers.size = allocate_pages(record.chunk_bytes), record.chunk_bytes
            chunk = buffers.memory[: stop - start]
            files[name].read_into(start, chunk)
            if digest(chunk) != record.digests[index]:
                layout = ImageLayout(b"", record.size, {}, spans.get(name, {}))
                raise CorruptCheckpoint(
                    damaged_text(store, found, record, index, layout),
                    hint="load an older one: HoldfastReader(path, step=...); see holdfast list",
                )
            _hand_out(torch.frombuffer(chunk, dtype=torch.uint8), start, by_chunk[name, index], placing)

        side_by_side(read_chunk, len(work), threads=threads)
    return sum(_length(records[name], index) for name, index in work)


def _hand_out(chunk: torch.Tensor, start: int, wants: list[Want], placing: threading.Lock) -> None:
    for want in wants:
        low, high = max(want.start, start), min(want.stop, start + len(chunk))
        with placing:
            memory = want.memory()
        memory[low - want.start : high - want.start].copy_(chunk[low - start : high - start])
        with placing:
            want.came(high - low)


def _length(record: FileRecord, index: int) -> int:
    start, stop = chunk_span(index, record.size, record.chunk_bytes)
    return stop - start
