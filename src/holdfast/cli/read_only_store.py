"""A store that can only be read: the base of what the command line puts around a run. Never writes."""

from __future__ import annotations

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

    def leftovers(self) -> list[str]:
        # Only the run's writer may judge which unfinished places are abandoned, and a reader is not one.
        return []

    def retire(self, name: str) -> None:
        raise self._refused()

    def begin(self, name: str, need_bytes: int) -> None:
        raise self._refused()

    def write(self, name: str, source: ImageSource) -> FileRecord:
        raise self._refused()

    def publish(self, name: str, manifest: bytes) -> None:
        raise self._refused()

    def abandon(self, name: str) -> None:
        raise self._refused()

    def _refused(self) -> InternalError:
        return InternalError(f"{self.where} was opened only to read")
