"""The speed of this machine with nothing in the way: memory, digest, the disk past its cache. No torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from holdfast.checkpoints.read import allocate_pages
from holdfast.clock import SystemClock
from holdfast.format.checksum import chunk_count, chunk_span, digest
from holdfast.stores.os_errors import store_errors
from holdfast.stores.posix import PosixIO
from holdfast.stores.side_by_side import side_by_side

_THREADS = 2
_MOST_BYTES = 512 << 20
_clock = SystemClock()


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bytes per second, the best of the repeats: a limit is what the machine can do at all."""

    memory_copy: float
    digest: float
    write_and_fsync: float
    read: float
    bytes: int


def measure_limits(folder: Path, size: int, seconds: float) -> Limits:
    """Measure in `folder` for about that long."""
    size = max(min(size, _MOST_BYTES) & ~0xFFFFF, 1 << 20)
    source, target = allocate_pages(size), allocate_pages(size)
    # Numbers without a pattern, so that no disk can compress or deduplicate them.
    np.frombuffer(source, np.uint8)[:] = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    np.frombuffer(target, np.uint8)[:] = 1
    share = seconds / 4
    files = _Files(folder)
    return Limits(
        memory_copy=size / _best(lambda: _copy(target, source), share),
        digest=size / _best(lambda: _digest(source), share),
        write_and_fsync=size / _best(lambda: files.write(source), share),
        read=size / _best(lambda: files.read(target), share),
        bytes=size,
    )


def _best(work: Callable[[], float], seconds: float, most: int = 9) -> float:
    """The shortest of several runs that take about `seconds` in all; at least two, for the first is cold."""
    taken = [work(), work()]
    while sum(taken) + min(taken) < seconds and len(taken) < most:
        taken.append(work())
    return max(min(taken), 1e-9)


def _copy(target: memoryview, source: memoryview) -> float:
    begin = _clock.monotonic()
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
    return _clock.monotonic() - begin


def _digest(source: memoryview) -> float:
    begin = _clock.monotonic()

    def one(index: int) -> None:
        start, stop = chunk_span(index, len(source))
        digest(source[start:stop])

    side_by_side(one, chunk_count(len(source)), threads=_THREADS)
    return _clock.monotonic() - begin


class _Files:
    """One file, written anew and read back, in chunks and past the page cache where that is possible."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._io = PosixIO()
        self._count = 0

    def write(self, source: memoryview) -> float:
        with store_errors("measure", str(self._folder)), self._directory() as parent:
            if self._count:
                self._io.unlink(parent, self._name)
            self._count += 1
            begin = _clock.monotonic()
            file = self._io.create(parent, self._name, direct=True)
            try:
                self._io.preallocate(file, len(source))
                self._chunks(len(source), lambda a, b: self._io.write_at(file, source[a:b], a))
                self._io.fsync(file)
            finally:
                self._io.close(file)
            return _clock.monotonic() - begin

    def read(self, target: memoryview) -> float:
        with store_errors("measure", str(self._folder)), self._directory() as parent:
            file = self._io.open_read(parent, self._name, direct=True)
            try:
                begin = _clock.monotonic()
                self._chunks(len(target), lambda a, b: self._io.read_at(file, target[a:b], a))
                return _clock.monotonic() - begin
            finally:
                self._io.close(file)

    @property
    def _name(self) -> str:
        return f"limits-{self._count}"

    def _chunks(self, size: int, work: Callable[[int, int], int]) -> None:
        def whole(index: int) -> None:
            start, stop = chunk_span(index, size)
            while start < stop:
                done = work(start, stop)
                if done <= 0:
                    raise OSError("the file ended too early")
                start += done

        side_by_side(whole, chunk_count(size), threads=_THREADS)

    @contextmanager
    def _directory(self) -> Iterator[int]:
        directory = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield directory
        finally:
            os.close(directory)
