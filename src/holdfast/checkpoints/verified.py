"""A verified file: every chunk is compared with its digest in the manifest before anybody gets it.

It is read from one copy or from several, nearest first. A chunk that does not match in one copy is as good as
lost there and comes from the next. Nothing else in holdfast compares stored bytes with digests.
"""

from __future__ import annotations

import mmap
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from holdfast.checkpoints.proof import is_doubtful
from holdfast.errors import CorruptCheckpoint, HoldfastError
from holdfast.format.checksum import CHUNK_BYTES, RunningDigest, chunk_span, digest
from holdfast.format.image import ImageLayout
from holdfast.format.manifest import FileRecord
from holdfast.stores.base import PAGE, StoredFile
from holdfast.stores.side_by_side import side_by_side

# Small enough to stay in a core's cache: a check then costs the memory bus, and training, next to nothing.
_PIECE_BYTES = 1 << 20


def allocate_pages(size: int) -> memoryview:
    """Fresh page-aligned memory, from the system and back to it."""
    # Private: shared pages cost twice as much to touch for the first time.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return memoryview(mmap.mmap(-1, max(-(-size // PAGE) * PAGE, PAGE), flags=flags))[:size]


class PageBuffer(threading.local):
    """Page-aligned memory, one for each thread, valid until the thread asks for the next."""

    memory: memoryview | None = None

    def of(self, size: int) -> memoryview:
        if self.memory is None or len(self.memory) < size:
            self.memory = allocate_pages(max(-(-size // PAGE) * PAGE, PAGE))
        return self.memory[:size]


@dataclass(frozen=True)
class Copy:
    """One place from which a file can be read. `name` is what messages call the place."""

    name: str
    open: Callable[[], StoredFile]


Failure = tuple[Copy, HoldfastError]


class DamagedChunk(CorruptCheckpoint):
    """One chunk of a file is good in no copy."""

    def __init__(self, message: str, record: FileRecord, index: int, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.record = record
        self.index = index

    def holding(self, layout: ImageLayout | None, hint: str | None = None) -> DamagedChunk:
        """The same, with the names of the tensors in it if the image's header could be read."""
        start, stop = chunk_span(self.index, self.record.size, self.record.chunk_bytes)
        spans = layout.spans if layout else {}
        names = [repr(name[:80]) for name, (begin, end) in spans.items() if begin < stop and end > start]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        held = f"; it holds {', '.join(names[:3])}{more}" if names else ""
        return DamagedChunk(self.message + held, self.record, self.index, hint=hint)


class KeptChunks:
    """The chunks that were read last. Readers of small ranges come back to the chunk they were in."""

    def __init__(self, limit_bytes: int = 4 * CHUNK_BYTES) -> None:
        self._limit = limit_bytes
        self._guard = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], memoryview] = OrderedDict()
        # New memory is slow to touch for the first time, so what was let go is used again.
        self._spare: list[memoryview] = []

    def copy(self, key: tuple[str, int], first: int, into: memoryview) -> bool:
        # Copied while nobody else can let it go: the memory is used again.
        with self._guard:
            kept = self._kept.get(key)
            if kept is None:
                return False
            self._kept.move_to_end(key)
            into[:] = kept[first : first + len(into)]
            return True

    def memory_for(self, size: int) -> memoryview:
        with self._guard:
            memory = self._spare.pop() if self._spare else None
        return memory if memory is not None and len(memory) >= size else allocate_pages(max(size, 1))

    def keep(self, key: tuple[str, int], memory: memoryview) -> None:
        with self._guard:
            self._kept[key] = memory
            while len(self._kept) > 1 and sum(map(len, self._kept.values())) > self._limit:
                self._spare = [self._kept.popitem(last=False)[1]]

    def clear(self) -> None:
        with self._guard:
            self._kept.clear()
            self._spare.clear()


class VerifiedFile:
    """Satisfies StoredFile. May be used from several threads.

    - `lost(index, failures)` makes the error of a chunk that no copy gives; `index` is None where no copy can
      even be opened.
    - `failed(copy, error, index)` hears of every copy that is passed over.
    - `pace(count)` is called before, `count(copy, bytes)` after bytes are read.
    """

    def __init__(
        self,
        record: FileRecord,
        checkpoint: str,
        copies: Sequence[Copy],
        *,
        lost: Callable[[int | None, list[Failure]], HoldfastError] | None = None,
        failed: Callable[[Copy, HoldfastError, int | None], None] = lambda copy, error, index: None,
        pace: Callable[[int], None] = lambda count: None,
        count: Callable[[Copy, int], None] = lambda copy, count: None,
        kept: KeptChunks | None = None,
    ) -> None:
        self.record = record
        self.size = record.size
        self._checkpoint = checkpoint
        self._copies = list(copies)
        self._lost = lost or self._damaged
        self._failed = failed
        self._pace = pace
        self._count = count
        self._kept = kept or KeptChunks()
        self._loading = threading.Lock()
        self._opening = threading.Lock()
        self._open: dict[str, StoredFile] = {}
        # Why a copy is not asked again: each time might cost a time limit.
        self._unusable: dict[str, HoldfastError] = {}
        # Closed at the end only: another thread may be reading from it.
        self._given_up: list[StoredFile] = []

    def opened(self) -> Self:
        """With the nearest copy open. Before the first byte: a pruner may take the name away, but not what is
        open."""
        if not any(self._file_of(copy) for copy in self._copies):
            raise self._lost(None, [(copy, self._unusable[copy.name]) for copy in self._copies])
        return self

    def close(self) -> None:
        with self._opening:
            files = [*self._open.values(), *self._given_up]
            self._open, self._given_up, self._copies = {}, [], []
        for file in files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- reading

    def span(self, index: int) -> tuple[int, int]:
        return chunk_span(index, self.size, self.record.chunk_bytes)

    def chunk_into(self, index: int, buffer: memoryview) -> None:
        """One whole chunk, good, into memory of its length."""
        self._take(index, buffer)

    def chunks(self) -> Iterator[memoryview]:
        """All of it, one good chunk after the other, in memory that is used again."""
        buffer = allocate_pages(min(self.record.chunk_bytes, self.size))
        for index in range(len(self.record.digests)):
            start, stop = self.span(index)
            self.chunk_into(index, buffer[: stop - start])
            yield buffer[: stop - start]

    def read(self, start: int, stop: int) -> bytes:
        buffer = memoryview(bytearray(stop - start))
        self.read_into(start, buffer)
        return bytes(buffer)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Any range. Fastest where it covers whole chunks; others are kept, for the next range."""
        done = 0
        while done < len(buffer):
            index, inside = divmod(offset + done, self.record.chunk_bytes)
            start, stop = self.span(index)
            if offset + done >= stop:
                raise CorruptCheckpoint(f"{self.record.name} of {self._checkpoint} ends at byte {self.size}")
            part = buffer[done : done + min(stop - start - inside, len(buffer) - done)]
            if len(part) == stop - start:
                self.chunk_into(index, part)
            else:
                self._part_into(index, inside, part)
            done += len(part)

    def bad_chunks(
        self,
        *,
        threads: int = 2,
        checked: Callable[[int], None] = lambda count: None,
        first_only: bool = False,
        unreadable_too: bool = False,
    ) -> list[DamagedChunk]:
        """What is damaged, in order, without keeping a byte. `checked(count)` hears of bytes compared.

        A chunk that cannot be read for now proves nothing: its error is raised, or counted with
        `unreadable_too`.
        """
        bad: list[DamagedChunk] = []
        buffers = PageBuffer()

        def check(index: int) -> None:
            if bad and first_only:
                return
            start, stop = self.span(index)
            try:
                self._take(index, buffers.of(min(_PIECE_BYTES, stop - start)))
            except DamagedChunk as error:
                bad.append(error)
            except HoldfastError as error:
                if not unreadable_too:
                    raise
                bad.append(DamagedChunk(error.message, self.record, index))
            checked(stop - start)

        side_by_side(check, len(self.record.digests), threads=threads)
        return sorted(bad, key=lambda one: one.index)

    def nearest(self) -> StoredFile:
        """The nearest copy as it is, unverified: for a header that is judged by what it says."""
        return next(file for copy in self._copies if (file := self._file_of(copy)) is not None)

    # ---- how

    def _part_into(self, index: int, first: int, part: memoryview) -> None:
        key = (self.record.name, index)
        # One at a time: two that want the same chunk read it once.
        with self._loading:
            if not self._kept.copy(key, first, part):
                start, stop = self.span(index)
                memory = self._kept.memory_for(stop - start)
                self.chunk_into(index, memory[: stop - start])
                part[:] = memory[first : first + len(part)]
                self._kept.keep(key, memory)

    def _take(self, index: int, buffer: memoryview) -> None:
        """Read one chunk, through `buffer` if that is shorter, from the first copy in which it is good."""
        start, stop = self.span(index)
        failures: list[Failure] = []
        for copy in self._copies:
            file = self._file_of(copy)
            if file is None:
                failures.append((copy, self._unusable[copy.name]))
                continue
            self._pace(stop - start)
            try:
                found = _digest_through(file, start, stop, buffer)
                self._count(copy, stop - start)
                if found == self.record.digests[index]:
                    return
                failure: HoldfastError = _Mismatch(f"bytes {start} to {stop} do not match their digest")
            except CorruptCheckpoint as error:
                failure = error
            except HoldfastError as error:
                failure = error
                # Where there is no other copy, the next chunk may still be readable.
                if len(self._copies) > 1:
                    self._give_up(copy, error)
            failures.append((copy, failure))
            self._failed(copy, failure, index)
        raise self._lost(index, failures)

    def _file_of(self, copy: Copy) -> StoredFile | None:
        """The open file; None, and said once, if this copy cannot serve."""
        with self._opening:
            if copy.name not in self._open and copy.name not in self._unusable:
                try:
                    self._open[copy.name] = self._open_one(copy)
                except HoldfastError as error:
                    self._unusable[copy.name] = error
                    self._failed(copy, error, None)
            return self._open.get(copy.name)

    def _open_one(self, copy: Copy) -> StoredFile:
        file = copy.open()
        if file.size != self.size:
            size = file.size
            file.close()
            where = f"{self.record.name} of {self._checkpoint} in {copy.name}"
            raise CorruptCheckpoint(f"{where} has {size} bytes, not {self.size}")
        return file

    def _give_up(self, copy: Copy, error: HoldfastError) -> None:
        with self._opening:
            self._unusable[copy.name] = error
            if (file := self._open.pop(copy.name, None)) is not None:
                self._given_up.append(file)

    def _damaged(self, index: int | None, failures: list[Failure]) -> HoldfastError:
        # What may be whole comes first, then what is gone. Only bytes that were read prove damage.
        unread = [error for _, error in failures if not isinstance(error, CorruptCheckpoint)]
        if unread or index is None:
            return next(filter(is_doubtful, unread), None) or [*unread, failures[0][1]][0]
        start, stop = self.span(index)
        where = ", ".join(copy.name for copy, _ in failures)
        read = [error.message for _, error in failures if not isinstance(error, _Mismatch)]
        return DamagedChunk(
            f"{self.record.name} of {self._checkpoint} in {where} is damaged: chunk {index} (bytes {start} to"
            f" {stop}) {'; '.join(read) or 'does not match its digest'}",
            self.record,
            index,
        )


class _Mismatch(CorruptCheckpoint): ...


def is_good(record: FileRecord, checkpoint: str, copy: Copy) -> bool:
    """Whether this copy is there and all of it is good."""
    try:
        with VerifiedFile(record, checkpoint, [copy]).opened() as file:
            return not file.bad_chunks(first_only=True)
    except HoldfastError:
        return False


def _digest_through(file: StoredFile, start: int, stop: int, buffer: memoryview) -> str:
    if len(buffer) == stop - start:
        file.read_into(start, buffer)
        return digest(buffer)
    running = RunningDigest()
    for at in range(start, stop, len(buffer)):
        piece = buffer[: stop - at]
        file.read_into(at, piece)
        running.update(piece)
    return running.hex()
