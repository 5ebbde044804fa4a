"""A store on which nothing can be removed: pruning runs its own code on it and only says what it would do."""

from __future__ import annotations

from holdfast.errors import InternalError
from holdfast.format.manifest import FileRecord
from holdfast.stores.base import ImageSource, Store, StoredFile, StoreProperties


class Rehearsal:
    """Satisfies Store. Reads go through, `retire` does nothing, everything that writes is refused."""

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

    def names(self) -> list[str]:
        return self._store.names()

    def manifest(self, name: str) -> bytes:
        return self._store.manifest(name)

    def open(self, name: str, file: str) -> StoredFile:
        return self._store.open(name, file)

    def retire(self, name: str) -> None:
        """Only pretended."""

    def leftovers(self) -> list[str]:
        # Only the run's writer may judge which unfinished places are abandoned, and a rehearsal is not one.
        return []

    def begin(self, name: str, need_bytes: int) -> None:
        raise InternalError("a rehearsal does not write")

    def write(self, name: str, source: ImageSource) -> FileRecord:
        raise InternalError("a rehearsal does not write")

    def publish(self, name: str, manifest: bytes) -> None:
        raise InternalError("a rehearsal does not write")

    def abandon(self, name: str) -> None:
        raise InternalError("a rehearsal does not write")
