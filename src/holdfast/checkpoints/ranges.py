"""Parts of a checkpoint's files: only the chunks that hold what is wanted, each of them verified."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from holdfast.checkpoints.find import Found
from holdfast.checkpoints.read import FILES_AT_ONCE, each_chunk, open_all, require_manifest
from holdfast.checkpoints.verified import DamagedChunk, PageBuffer, VerifiedFile
from holdfast.errors import CorruptCheckpoint
from holdfast.format.image import ImageLayout
from holdfast.stores.base import Store

_LARGE = 64 << 10


@dataclass(frozen=True)
class Wanted:
    """Bytes [start, start + len(into)) of a file, and where to put them."""

    file: str
    start: int
    into: memoryview

    @property
    def stop(self) -> int:
        return self.start + len(self.into)


class Span(Protocol):
    """Bytes [start, stop) of a file."""

    @property
    def file(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...


S = TypeVar("S", bound=Span)
Chunk = tuple[str, int]


def read_ranges(store: Store, found: Found, wanted: Iterable[Wanted], *, threads: int = 4) -> int:
    """Fill every range. Returns how many bytes were read. CorruptCheckpoint names file, chunk and place."""
    by_chunk = chunks_of(found, wanted)

    def take(name: str, index: int, start: int, chunk: memoryview) -> None:
        for want in by_chunk[name, index]:
            low, high = max(want.start, start), min(want.stop, start + len(chunk))
            _copy(want.into[low - want.start : high - want.start], chunk[low - start : high - start])

    return read_chunks(store, found, by_chunk, take, threads=threads)


def chunks_of(found: Found, wanted: Iterable[S]) -> dict[Chunk, list[S]]:
    """What is wanted of each chunk, by file and number. Empty ranges want nothing."""
    records = {record.name: record for record in require_manifest(found).files}
    by_chunk: dict[Chunk, list[S]] = defaultdict(list)
    for want in wanted:
        record = records.get(want.file)
        if record is None:
            raise CorruptCheckpoint(f"checkpoint {found.name} has no file {want.file}")
        if want.stop > record.size:
            raise CorruptCheckpoint(
                f"bytes up to {want.stop} of {want.file} of {found.name}, which has {record.size}"
            )
        if want.start < want.stop:
            first, last = want.start // record.chunk_bytes, (want.stop - 1) // record.chunk_bytes
            for index in range(first, last + 1):
                by_chunk[want.file, index].append(want)
    return by_chunk


def read_chunks(
    store: Store,
    found: Found,
    chunks: Collection[Chunk],
    take: Callable[[str, int, int, memoryview], None],
    *,
    threads: int = 4,
    layouts: Mapping[str, ImageLayout] | None = None,
    hint: str | None = None,
) -> int:
    """Give every chunk, verified, to `take(file, number, first byte, bytes)`. Returns the bytes read.

    `take` is called from several threads, and the memory it is given is used again. By `layouts`, a complaint
    about damage names the tensors.
    """
    records = {record.name: record for record in require_manifest(found).files}
    by_file: dict[str, list[int]] = defaultdict(list)
    for name, index in sorted(chunks):
        by_file[name].append(index)
    names, scratch, known = list(by_file), PageBuffer(), layouts or {}

    def read_chunk(file: VerifiedFile, index: int) -> None:
        start, stop = file.span(index)
        # Through memory of our own: a digest covers the whole chunk, and a direct read needs whole pages.
        chunk = scratch.of(stop - start)
        try:
            file.chunk_into(index, chunk)
        except DamagedChunk as error:
            raise error.holding(known.get(file.record.name), hint) from error
        take(file.record.name, index, start, chunk)

    read = 0
    for first in range(0, len(names), FILES_AT_ONCE):
        some = [records[name] for name in names[first : first + FILES_AT_ONCE]]
        with open_all(store, found, some) as files:
            work = [(file, index) for file in files for index in by_file[file.record.name]]
            each_chunk(work, read_chunk, threads)
            read += sum(stop - start for file, index in work for start, stop in [file.span(index)])
    return read


def _copy(into: memoryview, data: memoryview) -> None:
    if len(data) < _LARGE:
        into[:] = data
        return
    # Lets the interpreter go meanwhile, which assigning to a slice does not: other threads read on.
    np.copyto(np.frombuffer(into, np.uint8), np.frombuffer(data, np.uint8))
