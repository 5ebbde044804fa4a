"""A shared store that all nodes reach over one wire of 200 MB/s, whoever reads or writes.

A real limit: a bucket of tokens without a burst, in a file that all processes of an experiment share. What
passes is counted: "0 bytes from the shared store" rests on the wire, not on the word of whoever restores.
"""

from __future__ import annotations

import fcntl
import io
import os
import struct
import time
from pathlib import Path
from typing import Any

from holdfast.format.manifest import FileRecord
from holdfast.stores.base import ImageSource, StoredFile
from holdfast.stores.store import CheckpointStore

BYTES_PER_SECOND = 200_000_000
_LEDGER = struct.Struct("<dQQ")  # when the wire is free again, bytes read, bytes written


class Wire:
    """Made before the ranks are forked. A killed process leaves nothing locked."""

    def __init__(self, ledger: Path) -> None:
        self._path = ledger
        ledger.write_bytes(_LEDGER.pack(0.0, 0, 0))

    def take(self, count: int, *, reading: bool) -> None:
        """Returns when `count` bytes have passed."""
        with open(self._path, "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            free, read, written = _LEDGER.unpack(file.read(_LEDGER.size))
            free = max(free, time.monotonic()) + count / BYTES_PER_SECOND
            read, written = (read + count, written) if reading else (read, written + count)
            file.seek(0)
            file.write(_LEDGER.pack(free, read, written))
        time.sleep(max(free - time.monotonic(), 0.0))

    @property
    def bytes_read(self) -> int:
        return int(_LEDGER.unpack(self._path.read_bytes())[1])

    @property
    def bytes_written(self) -> int:
        return int(_LEDGER.unpack(self._path.read_bytes())[2])


class SharedFile(io.FileIO):
    """What torch.save writes to and torch.load reads from."""

    def __init__(self, path: Path, mode: str, wire: Wire) -> None:
        super().__init__(path, mode)
        self._wire = wire

    def write(self, data: Any) -> int:
        self._wire.take(memoryview(data).nbytes, reading=False)
        return super().write(data)

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        self._wire.take(len(data), reading=True)
        return data

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer) or 0
        self._wire.take(count, reading=True)
        return count


class _Source:
    """An image on its way to the shared store."""

    concurrent = False

    def __init__(self, source: ImageSource, wire: Wire) -> None:
        self.name, self.size = source.name, source.size
        self._source, self._wire = source, wire

    def view(self, start: int, stop: int) -> memoryview:
        self._wire.take(stop - start, reading=False)
        return self._source.view(start, stop)


class _Stored:
    """A file of the shared store that is read."""

    def __init__(self, file: StoredFile, wire: Wire) -> None:
        self._file, self._wire, self.size = file, wire, file.size

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._wire.take(len(buffer), reading=True)
        self._file.read_into(offset, buffer)

    def close(self) -> None:
        self._file.close()


def put_behind(wire: Wire, shared: Path) -> None:
    """From now on this process reaches the run folder `shared` over the wire alone. Once per process."""
    real_write, real_open, where = CheckpointStore.write, CheckpointStore.open, os.path.abspath(shared)

    def write(self: CheckpointStore, name: str, source: ImageSource, **more: Any) -> FileRecord:
        over_wire = source if self.where != where or "expect" not in more else _Source(source, wire)
        return real_write(self, name, over_wire, **more)

    def opened(self: CheckpointStore, name: str, file: str) -> Any:
        found = real_open(self, name, file)
        return found if self.where != where else _Stored(found, wire)

    CheckpointStore.write = write  # type: ignore[method-assign]
    CheckpointStore.open = opened  # type: ignore[method-assign]
