"""An open committed file, read past the page cache: a checkpoint is read once and would only evict training.

Its descriptor keeps the bytes readable after a pruner has removed the name.
"""

from __future__ import annotations

import contextlib
import mmap

from holdfast.errors import CorruptCheckpoint
from holdfast.stores.base import PAGE
from holdfast.stores.io import StoreIO
from holdfast.stores.os_errors import store_errors
from holdfast.stores.small_read import open_written


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
