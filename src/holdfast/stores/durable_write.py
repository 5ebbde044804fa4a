"""Write one file so that it is on the disk, whole, when the call returns, and digest it on the way.

The digests come from memory, never from what the disk gives back. A failed fsync is final: the kernel
marks the lost pages clean, so asking again would report success over missing data.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from holdfast.errors import StoreUnavailable
from holdfast.format.checksum import ALGORITHM, CHUNK_BYTES, chunk_count, chunk_span, digest
from holdfast.format.manifest import FileRecord
from holdfast.stores.base import PAGE, ImageSource
from holdfast.stores.io import StoreIO
from holdfast.stores.side_by_side import side_by_side


def write_image(io: StoreIO, place: int, source: ImageSource, *, threads: int = 3) -> FileRecord:
    """Write `source` into the open directory `place`. Its name is durable once `place` is fsynced.

    Three threads: while one digests, two writes are under way, which is what keeps a disk busy.
    """
    size = source.size
    digests = [""] * chunk_count(size)
    file = io.create(place, source.name, direct=True)
    with _closed_after(io, file):
        # Also makes the file's full length known at once: threads can only write past each other
        # in a direct file that none of them has to extend.
        io.preallocate(file, _whole_pages(size))

        def write_chunk(index: int) -> None:
            start, stop = chunk_span(index, size)
            view = source.view(start, _whole_pages(stop))
            digests[index] = digest(view[: stop - start])
            _write_all(io, file, view, start)

        side_by_side(write_chunk, len(digests), threads=threads if source.concurrent else 1)
        io.truncate(file, size)
        io.fsync(file)
        _require_size(io, file, size, source.name)
    return FileRecord(source.name, size, "", ALGORITHM, CHUNK_BYTES, tuple(digests))


def write_small(io: StoreIO, directory: int, name: str, data: bytes) -> None:
    """A record that fits in memory, durable but for its name."""
    file = io.create(directory, name)
    with _closed_after(io, file):
        _write_all(io, file, memoryview(data), 0)
        io.fsync(file)
        _require_size(io, file, len(data), name)


def _write_all(io: StoreIO, file: int, data: memoryview, offset: int) -> None:
    # Short writes are normal: a file system that is almost full takes what fits and complains next time.
    done = 0
    while done < len(data):
        written = io.write_at(file, data[done:], offset + done)
        if written <= 0:
            raise OSError(errno.EIO, "the file system accepted none of the bytes offered")
        done += written


def _require_size(io: StoreIO, file: int, size: int, name: str) -> None:
    actual = io.size(file)
    if actual != size:
        raise StoreUnavailable(f"{name} has {actual} bytes after writing {size}")


@contextlib.contextmanager
def _closed_after(io: StoreIO, file: int) -> Iterator[None]:
    """Network file systems report lost writes at close, so its error counts, unless one is under way."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            io.close(file)
        raise
    io.close(file)


def _whole_pages(count: int) -> int:
    return -(-count // PAGE) * PAGE
