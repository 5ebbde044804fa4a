"""Read what a store has written: nothing but regular files, and small ones only as large as they may be."""

from __future__ import annotations

import errno
import os
import stat

from holdfast.errors import CorruptCheckpoint
from holdfast.stores.io import StoreIO


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
