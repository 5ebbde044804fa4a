"""A place that checkpoints are copied to, file by file: a later process goes on where one was killed.

A file gets its name when it is durable and right; the manifest comes last. What was begun and never settled
stays until it is finished or superseded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace as changed
from typing import Protocol

from holdfast.errors import CorruptCheckpoint, InternalError, StoreError, StoreNotFound
from holdfast.format.manifest import FileRecord
from holdfast.stores.base import ImageSource, Store, StoredFile
from holdfast.stores.directory import DirectoryStore
from holdfast.stores.node_store import NodeStore


class Target(Protocol):
    @property
    def store(self) -> Store: ...

    def open(self, name: str, file: str) -> StoredFile:
        """A file that is there, in a finished or unfinished place."""
        ...

    def put(self, name: str, source: ImageSource, expect: FileRecord, *, replace: bool) -> None:
        """Write one file. CorruptCheckpoint if the bytes are not those of `expect`."""
        ...

    def settle(self, name: str, manifest: bytes) -> None:
        """The commit point. Raises Fenced if another writer has taken over."""
        ...

    def sweep(self, name: str) -> None:
        """Remove what was begun for a checkpoint and never settled, if anything."""
        ...

    def unsettled(self) -> list[str]: ...


class FolderTarget:
    """Satisfies Target, in a directory. A DirectoryStore must have been claimed; its epoch is the fence."""

    def __init__(self, store: DirectoryStore | NodeStore) -> None:
        self.store: Store = store
        # The same folder, file by file. What it begins bears a name that a DirectoryStore leaves alone.
        self._files = (
            store if isinstance(store, NodeStore) else NodeStore(store.where, properties=store.properties)
        )
        self._require_unfenced: Callable[[], None] = _nothing
        if isinstance(store, DirectoryStore):
            self._require_unfenced = lambda: DirectoryStore(store.where).join(store.writer_epoch)

    def open(self, name: str, file: str) -> StoredFile:
        return self._files.open(name, file)

    def put(self, name: str, source: ImageSource, expect: FileRecord, *, replace: bool) -> None:
        self._require_unfenced()
        self._files.put(name, source, expect=expect, replace=replace)

    def settle(self, name: str, manifest: bytes) -> None:
        self._require_unfenced()
        self._files.settle(name, manifest)

    def sweep(self, name: str) -> None:
        self._files.abandon(name)

    def unsettled(self) -> list[str]:
        return self._files.unsettled()


class StoreTarget:
    """Satisfies Target over any store, by its plain verbs. Where a file is visible only once it is whole, as
    in a bucket, that is all it takes to go on; a place with anything half-written is begun anew."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._begun: set[str] = set()

    def open(self, name: str, file: str) -> StoredFile:
        return self.store.open(name, file)

    def put(self, name: str, source: ImageSource, expect: FileRecord, *, replace: bool) -> None:
        if replace:
            # Nothing here can be written over, so the unfinished place goes; the caller starts it anew.
            self.sweep(name)
            raise StoreError(
                f"{source.name} of {name} in {self.store.where} was unfinished and is begun anew"
            )
        if name not in self._begun:
            # Begun by a process that died: its whole files are of use.
            with contextlib.suppress(StoreError):
                self.store.begin(name, source.size)
            self._begun.add(name)
        record = self.store.write(name, source)
        if changed(record, role=expect.role) != expect:
            self.sweep(name)
            raise CorruptCheckpoint(
                f"{source.name} came to {self.store.where} with other bytes than its manifest says"
            )

    def settle(self, name: str, manifest: bytes) -> None:
        self.store.publish(name, manifest)
        self._begun.discard(name)

    def sweep(self, name: str) -> None:
        self._begun.discard(name)
        with contextlib.suppress(InternalError):
            self.store.abandon(name)

    def unsettled(self) -> list[str]:
        return self.store.leftovers()


def target_for(store: Store) -> Target:
    return FolderTarget(store) if isinstance(store, (DirectoryStore, NodeStore)) else StoreTarget(store)


def size_at(target: Target, name: str, file: str) -> int | None:
    """The size of a file at the target; None if it is not there."""
    try:
        opened = target.open(name, file)
    except StoreNotFound:
        return None
    try:
        return opened.size
    finally:
        opened.close()


def _nothing() -> None: ...
