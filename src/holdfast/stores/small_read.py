"""Read a small record whole, refusing anything larger than it may be before allocating for it."""

from __future__ import annotations

from holdfast.errors import CorruptCheckpoint
from holdfast.stores.io import StoreIO


def read_small(io: StoreIO, directory: int, name: str, limit: int) -> bytes:
    file = io.open_read(directory, name)
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
