"""Wrappers that the command line puts around a store: read-only, with progress, and for a dry run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from holdfast.errors import InternalError
from holdfast.format.manifest import FileRecord
from holdfast.stores.base import ImageSource, Store, StoredFile, StoreProperties


class ReadOnlyStore:
    """Satisfies Store. Reads go through; everything else is refused."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def properties(self) -> StoreProperties:
        return self._store.properties

    @property
    def where(self) -> str:
        return self._store.where

    @property
    def uuid(self) -> str:
        return self._store.uuid

    @property
    def ancestors(self) -> tuple[str, ...]:
        return getattr(self._store, "ancestors", ())

    def names(self) -> list[str]:
        return self._store.names()

    def manifest(self, name: str) -> bytes:
        return self._store.manifest(name)

    def open(self, name: str, file: str) -> StoredFile:
        return self._store.open(name, file)

    def held(self, name: str) -> Mapping[str, int]:
        return self._store.held(name)

    def damaged_records(self, name: str, right: bytes) -> list[str]:
        return self._store.damaged_records(name, right)

    def leftovers(self, *, before: str | None = None) -> list[str]:
        # Only the run's writer may judge which unfinished places are abandoned, and a reader is not one.
        return []

    def retire(self, name: str) -> None:
        raise self._refused()

    def claim(self, *, at_least: int = 1, take_over: bool = False) -> int:
        raise self._refused()

    def release(self) -> None: ...

    def begin(self, name: str, need_bytes: int) -> None:
        raise self._refused()

    def write(
        self, name: str, source: ImageSource, *, expect: FileRecord | None = None, replace: bool = False
    ) -> FileRecord:
        raise self._refused()

    def publish(self, name: str, manifest: bytes) -> None:
        raise self._refused()

    def abandon(self, name: str) -> None:
        raise self._refused()

    def _refused(self) -> InternalError:
        return InternalError(f"{self.where} was opened only to read")


class DryRun(ReadOnlyStore):
    """Pruning runs its own code on this and only says what it would remove."""

    def retire(self, name: str) -> None:
        """Only pretended."""


class WatchedStore(ReadOnlyStore):
    """Counts the bytes that are read: `tell(count)` after each read, never from two threads at once."""

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
