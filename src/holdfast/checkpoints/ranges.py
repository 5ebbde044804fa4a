"""Parts of a checkpoint's files: only the chunks that hold what is wanted, each of them verified."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from holdfast.checkpoints.find import Found
from holdfast.checkpoints.read import (
    FILES_AT_ONCE,
    allocate_pages,
    damaged_text,
    is_checked,
    open_checked,
    require_manifest,
)
from holdfast.errors import CorruptCheckpoint
from holdfast.format.checksum import chunk_span, digest
from holdfast.format.image import ImageLayout
from holdfast.format.manifest import FileRecord
from holdfast.stores.base import PAGE, Store, StoredFile
from holdfast.stores.side_by_side import side_by_side

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
    names = sorted({name for name, _ in chunks})
    by_file: dict[str, list[Chunk]] = defaultdict(list)
    for chunk in sorted(chunks):
        by_file[chunk[0]].append(chunk)
    scratch = threading.local()
    for first in range(0, len(names), FILES_AT_ONCE):
        some = names[first : first + FILES_AT_ONCE]
        work = [chunk for name in some for chunk in by_file[name]]
        _read_some(store, found, records, some, work, take, scratch, threads, layouts or {}, hint)
    return sum(_length(records[name], index) for name, index in chunks)


def _read_some(
    store: Store,
    found: Found,
    records: Mapping[str, FileRecord],
    names: Sequence[str],
    work: Sequence[Chunk],
    take: Callable[[str, int, int, memoryview], None],
    scratch: threading.local,
    threads: int,
    layouts: Mapping[str, ImageLayout],
    hint: str | None,
) -> None:
    with ExitStack() as opened:
        # All of them before the first byte: a pruner may take the names away, but not what is open.
        files: dict[str, StoredFile] = {}
        for name in names:
            files[name] = open_checked(store, found, records[name])
            opened.callback(files[name].close)

        def read_chunk(number: int) -> None:
            name, index = work[number]
            record, file = records[name], files[name]
            start, stop = chunk_span(index, record.size, record.chunk_bytes)
            # Through memory of our own: a digest covers the whole chunk, and a direct read needs whole pages.
            if not hasattr(scratch, "pages") or len(scratch.pages) < stop - start:
                scratch.pages = allocate_pages(-(-record.chunk_bytes // PAGE) * PAGE)
            chunk = scratch.pages[: stop - start]
            file.read_into(start, chunk)
            if not is_checked(file, record) and digest(chunk) != record.digests[index]:
                layout = layouts.get(name)
                raise CorruptCheckpoint(damaged_text(store, found, record, index, layout), hint=hint)
            take(name, index, start, chunk)

        side_by_side(read_chunk, len(work), threads=threads)


def _length(record: FileRecord, index: int) -> int:
    start, stop = chunk_span(index, record.size, record.chunk_bytes)
    return stop - start


def _copy(into: memoryview, data: memoryview) -> None:
    if len(data) < _LARGE:
        into[:] = data
        return
    # Lets the interpreter go meanwhile, which assigning to a slice does not: other threads read on.
    np.copyto(np.frombuffer(into, np.uint8), np.frombuffer(data, np.uint8))
