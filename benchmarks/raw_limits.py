"""The speed of this machine with nothing in the way: what every checkpoint is measured against.

The loops here do the bare system calls over warm, aligned memory; they must never do more work than that.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import xxhash

from options import parse_options, scratch
from scoreboard import Scoreboard

CHUNK = 16 << 20
PAGE = 4096


def untouched(size: int) -> mmap.mmap:
    """Page-aligned memory that the kernel has yet to provide, as a process that just started finds it."""
    # Private, because the kernel gives huge pages to shared memory only where an administrator allowed it.
    buffer = mmap.mmap(-1, -(-size // PAGE) * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


def aligned(size: int) -> mmap.mmap:
    """Page-aligned memory, every page touched, so that no loop below pays for faults."""
    buffer = untouched(size)
    pages = np.frombuffer(buffer, dtype=np.uint64)
    pages[:] = np.arange(pages.size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return buffer


def memcpy(target: mmap.mmap, source: mmap.mmap) -> float:
    """Seconds to copy `source` over the already-touched `target`."""
    to, of = np.frombuffer(target, dtype=np.uint8), np.frombuffer(source, dtype=np.uint8)
    begin = time.perf_counter()
    np.copyto(to, of)
    return time.perf_counter() - begin


def digest(source: mmap.mmap) -> float:
    """Seconds for xxh3-128 over `source`, chunk by chunk as a checkpoint does it."""
    view = memoryview(source)
    begin = time.perf_counter()
    for start in range(0, len(view), CHUNK):
        xxhash.xxh3_128_digest(view[start : start + CHUNK])
    return time.perf_counter() - begin


def direct_write(path: Path, source: mmap.mmap, threads: int = 1, keep: bool = False) -> float:
    """Seconds for O_DIRECT writes of a new file plus fsync."""
    view = memoryview(source)
    begin = time.perf_counter()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o644)
    try:
        # Without it, parallel extending writes take turns on the inode lock.
        os.posix_fallocate(fd, 0, len(view))
        _each_chunk(len(view), threads, lambda a, b: _write_all(fd, view, a, b))
        os.fsync(fd)
    finally:
        os.close(fd)
    seconds = time.perf_counter() - begin
    if not keep:
        path.unlink()
    return seconds


def buffered_write(path: Path, source: mmap.mmap) -> float:
    """Seconds for a plain write through the page cache plus fsync."""
    view = memoryview(source)
    begin = time.perf_counter()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        _each_chunk(len(view), 1, lambda a, b: _write_all(fd, view, a, b))
        os.fsync(fd)
    finally:
        os.close(fd)
    seconds = time.perf_counter() - begin
    path.unlink()
    return seconds


def direct_read(path: Path, target: mmap.mmap, threads: int = 1) -> float:
    """Seconds to fill `target` from `path` past the page cache. The file must be as long as `target`."""
    view = memoryview(target)
    begin = time.perf_counter()
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        _each_chunk(len(view), threads, lambda a, b: _read_all(fd, view, a, b))
    finally:
        os.close(fd)
    return time.perf_counter() - begin


def forget_pages(paths: list[Path]) -> None:
    """Drop these files, and only these, from the page cache; raises if the kernel kept more than a crumb."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)  # dirty pages cannot be dropped
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            size = os.fstat(fd).st_size
            kept = _cached_bytes(fd, size) if size else 0
        finally:
            os.close(fd)
        if kept > max(1 << 20, size // 100):
            raise RuntimeError(f"{kept} bytes of {path.name} are still cached: the read would not be cold")


def _cached_bytes(fd: int, size: int) -> int:
    # mincore asks without touching; a read that must not wait would start the read-ahead itself.
    with mmap.mmap(fd, size, prot=mmap.PROT_READ) as window:
        address = np.frombuffer(window, dtype=np.uint8).ctypes.data
        pages = np.zeros(-(-size // PAGE), dtype=np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data)):
            raise OSError(ctypes.get_errno(), "mincore failed")
        return int((pages & 1).sum()) * PAGE


def _each_chunk(size: int, threads: int, do: Callable[[int, int], None]) -> None:
    spans = [(start, min(start + CHUNK, size)) for start in range(0, size, CHUNK)]
    if threads == 1:
        for start, stop in spans:
            do(start, stop)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(do, start, stop) for start, stop in spans]:
            done.result()


def _write_all(fd: int, view: memoryview, start: int, stop: int) -> None:
    while start < stop:
        start += os.pwrite(fd, view[start:stop], start)


def _read_all(fd: int, view: memoryview, start: int, stop: int) -> None:
    while start < stop:
        count = os.preadv(fd, [view[start:stop]], start)
        if count == 0:
            raise EOFError(f"file ends at {start}, expected {stop}")
        start += count


def main() -> None:
    options = parse_options(__doc__)
    size = 256 << 20 if options.quick else 1 << 30
    source, target = aligned(size), aligned(size)
    samples: dict[str, list[float]] = {}
    with scratch(options) as folder:
        direct_write(folder / "to-read", source, keep=True)
        measures: dict[str, Callable[[], float]] = {
            "memcpy": lambda: memcpy(target, source),
            "xxh3-128": lambda: digest(source),
            "O_DIRECT write + fsync": lambda: direct_write(folder / "w", source),
            "O_DIRECT write + fsync, 2 threads": lambda: direct_write(folder / "w", source, threads=2),
            "buffered write + fsync": lambda: buffered_write(folder / "w", source),
            "O_DIRECT read, cold": lambda: direct_read(folder / "to-read", target),
            "O_DIRECT read, cold, 2 threads": lambda: direct_read(folder / "to-read", target, threads=2),
            "the same into new memory": lambda: direct_read(folder / "to-read", untouched(size), threads=2),
        }
        for _ in range(options.repeats):
            for name, measure in measures.items():
                samples.setdefault(name, []).append(size / measure())
    board = Scoreboard("raw_limits", f"Raw limits, {size / 1e9:.2f} GB", options)
    for name, speeds in samples.items():
        board.add("raw", name, "B/s", speeds)
    board.finish()


if __name__ == "__main__":
    main()
