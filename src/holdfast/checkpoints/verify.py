"""Is a checkpoint whole? Cheaply (manifest and sizes), or deeply (every byte and every image header)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.checkpoints.find import Found
from holdfast.checkpoints.proof import READING, is_doubtful
from holdfast.checkpoints.read import (
    allocate_pages,
    damaged_text,
    load_surely,
    open_checked,
    require_manifest,
)
from holdfast.errors import CorruptCheckpoint, NewerFormat, StoreError
from holdfast.format.checksum import RunningDigest, chunk_span
from holdfast.format.image import ImageLayout, header_length, parse_image
from holdfast.format.manifest import FileRecord
from holdfast.format.names import CheckpointName
from holdfast.stores.base import Store, StoredFile
from holdfast.stores.patience import Patience
from holdfast.stores.side_by_side import side_by_side

Progress = Callable[[int, int], None]
_THREADS = 2
# Small enough to stay in a core's cache: the check then costs the memory bus, and training, next to nothing.
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Verdict:
    """What verification found. `bytes_checked` counts the bytes whose digests were compared."""

    name: CheckpointName
    is_deep: bool
    bytes_checked: int
    problems: tuple[str, ...]
    # Not every problem proves damage: what could not be read for now may be whole.
    doubt: StoreError | None = None

    @property
    def is_whole(self) -> bool:
        return not self.problems


def verify(
    store: Store,
    found: Found,
    *,
    deep: bool = True,
    progress: Progress | None = None,
    threads: int = _THREADS,
    headers: bool = True,
) -> Verdict:
    """Check one checkpoint and list everything wrong with it.

    `headers` also reads every image's table of contents: what this process has written itself, and whose
    digests are right, it need not. `progress(bytes_done, bytes_total)` may be called from a helper thread,
    never from two at once.
    """
    try:
        manifest = require_manifest(found)
    except (CorruptCheckpoint, StoreError, NewerFormat) as error:
        doubt = error if isinstance(error, StoreError) and is_doubtful(error) else None
        return Verdict(found.name, deep, 0, (error.message,), doubt)
    tally = _Tally(manifest.total_bytes, progress)
    problems: list[str] = []
    doubts: list[StoreError] = []
    for record in manifest.files:
        try:
            file = open_checked(store, found, record)
            try:
                if deep:
                    problems += _problems_in(store, found, record, file, tally, threads, headers)
            finally:
                file.close()
        except (CorruptCheckpoint, StoreError) as error:
            problems.append(error.message)
            if isinstance(error, StoreError) and is_doubtful(error):
                doubts.append(error)
    # One proof is enough, whatever else could not be read.
    doubt = doubts[0] if doubts and len(doubts) == len(problems) else None
    return Verdict(found.name, deep, tally.done, tuple(problems), doubt)


def verify_surely(store: Store, found: Found, patience: Patience = READING) -> Verdict:
    """A verdict that proves something, for whoever goes on from an older one if this is damaged. Raises
    StoreUnavailable where nobody can tell, NewerFormat for what only a newer holdfast reads."""

    def judge(found: Found) -> Verdict:
        if isinstance(found.error, NewerFormat):
            raise found.error
        verdict = verify(store, found)
        if verdict.doubt is not None:
            raise verdict.doubt
        return verdict

    return load_surely(store, found, judge, patience)


class _Tally:
    """Bytes checked so far, counted from two threads."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done = 0
        self._total = total
        self._progress = progress
        self._counting = threading.Lock()

    def add(self, count: int) -> None:
        with self._counting:
            self.done += count
            if self._progress is not None:
                self._progress(self.done, self._total)


def _problems_in(
    store: Store,
    found: Found,
    record: FileRecord,
    file: StoredFile,
    tally: _Tally,
    threads: int,
    headers: bool,
) -> list[str]:
    problems = []
    layout = None
    if headers and record.name.endswith(".safetensors"):
        try:
            layout = _read_layout(file)
        except CorruptCheckpoint as error:
            problems.append(f"{record.name} of {found.name} in {store.where}: {error.message}")
    buffers: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
    for _ in range(threads):
        buffers.put(allocate_pages(min(_PIECE_BYTES, record.size)))
    bad: list[int] = []

    def check(index: int) -> None:
        start, stop = chunk_span(index, record.size, record.chunk_bytes)
        buffer = buffers.get_nowait()
        running = RunningDigest()
        for at in range(start, stop, _PIECE_BYTES):
            piece = buffer[: min(_PIECE_BYTES, stop - at)]
            file.read_into(at, piece)
            running.update(piece)
        if running.hex() != record.digests[index]:
            bad.append(index)
        buffers.put(buffer)
        tally.add(stop - start)

    side_by_side(check, len(record.digests), threads=threads)
    return problems + [damaged_text(store, found, record, index, layout) for index in sorted(bad)]


def _read_layout(file: StoredFile) -> ImageLayout:
    """The image's own table of contents. Page-aligned memory, or the file would leave direct reading."""
    first = allocate_pages(min(8, file.size))
    file.read_into(0, first)
    header = allocate_pages(header_length(bytes(first), file.size))
    file.read_into(0, header)
    return parse_image(bytes(header), file.size)
