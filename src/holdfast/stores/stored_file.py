"""Read what a store has written: nothing but regular files, and small ones only as large as they may be.

A large one is read past the page cache: a checkpoint is read once and would only evict training. Its
descriptor keeps the bytes readable after a pruner has removed the name.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat

from holdfast.errors import CorruptCheckpoint
from holdfast.stores.base import PAGE
from holdfast.stores.io import StoreIO
from holdfast.stores.os_errors import store_errors


class DirectoryFile:
    """Satisfies StoredFile. `read_into` may be called from several threads."""

    def __init__(self, io: StoreIO, place: int, name: str, where: str) -> None:
        self._io = io
        self._where = where
        self._file = open_written(io, place, name, direct=True)
        try:
            self.size = io.size(self._file)
        except BaseException:
            with contextlib.suppress(OSError):
                io.close(self._file)
            raise

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`. Fastest when both are page-aligned; correct in any case."""
        done = 0
        while done < len(buffer):
            with store_errors("read", self._where):
                got = self._read_some(offset + done, buffer[done:])
            if got == 0:
                raise CorruptCheckpoint(f"{self._where} ends at byte {offset + done}, before its time")
            done += got

    def _read_some(self, offset: int, rest: memoryview) -> int:
        pages = len(rest) - len(rest) % PAGE
        if pages:
            return self._io.read_at(self._file, rest[:pages], offset)
        # Direct reads come in whole pages; the last, partial one takes a detour through a page of its own.
        with mmap.mmap(-1, PAGE) as page, memoryview(page) as bounce:
            got = min(self._io.read_at(self._file, bounce, offset), len(rest))
            rest[:got] = bounce[:got]
        return got

    def close(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            # Every byte has been read and checked by now; a complaint at the end changes none of them.
            with contextlib.suppress(OSError):
                self._io.close(file)


def open_written(io: StoreIO, directory: int, name: str, *, direct: bool = False) -> int:
    """An open file. What was written there was a regular one: a link or pipe proves that it is gone."""
    try:
        return io.open_read(directory, name, direct=direct)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise CorruptCheckpoint(
            f"{name} is a link, pipe or device", hint="only regular files are read: remove it"
        ) from error


def read_regular(path: str, limit: int) -> bytes:
    """At most `limit` bytes of a file that somebody else may have put there. OSError for anything that is not
    a regular one, at once: a link could lead anywhere, a pipe would never answer."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.ELOOP, "not a regular file", path)
        return opened.read(limit)


def read_small(io: StoreIO, directory: int, name: str, limit: int) -> bytes:
    file = open_written(io, directory, name)
    try:
        size = io.size(file)
        if size > limit:
            raise CorruptCheckpoint(f"{name} has {size} bytes, more than the {limit} it may have")
        data = bytearray(size)
        done = 0
        while done < size:
            got = io.read_at(file, memoryview(data)[done:], done)
            if got == 0:
                raise CorruptCheckpoint(f"{name} shrank while it was read")
            done += got
        return bytes(data)
    finally:
        io.close(file)
