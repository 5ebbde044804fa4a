"""A store that tells a progress bar about every byte read from it, whoever reads."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.cli.read_only_store import ReadOnlyStore
from holdfast.stores.base import Store, StoredFile


class WatchedStore(ReadOnlyStore):
    """`tell(count)` is called after each read, never from two threads at once."""

    def __init__(self, store: Store, tell: Callable[[int], None]) -> None:
        super().__init__(store)
        self._tell = tell
        self._telling = threading.Lock()

    def open(self, name: str, file: str) -> StoredFile:
        return _WatchedFile(super().open(name, file), self._add)

    def _add(self, count: int) -> None:
        with self._telling:
            self._tell(count)


class _WatchedFile:
    def __init__(self, file: StoredFile, tell: Callable[[int], None]) -> None:
        self._file = file
        self._tell = tell

    @property
    def size(self) -> int:
        return self._file.size

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._file.read_into(offset, buffer)
        self._tell(len(buffer))

    def close(self) -> None:
        self._file.close()
