"""What protecting and rebuilding ask of the store of one node, whether it is this one or far away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from holdfast.format.manifest import FileRecord
from holdfast.stores.base import ImageSource, StoredFile


@runtime_checkable
class NodeSide(Protocol):
    """The part that one node holds of each checkpoint: its own files, and what it keeps for others.

    All nodes hold the same manifest, which lists the files of all; so a file that is listed and not held is
    nothing strange here.
    """

    @property
    def where(self) -> str: ...

    def names(self) -> list[str]: ...

    def manifest(self, name: str) -> bytes: ...

    def held(self, name: str) -> Mapping[str, int]:
        """The files that are here, with their sizes; listed in the manifest or not. StoreNotFound if there
        is no such place."""
        ...

    def open(self, name: str, file: str) -> StoredFile: ...

    def put(
        self, name: str, source: ImageSource, *, expect: FileRecord | None = None, replace: bool = False
    ) -> FileRecord:
        """Add a file. It gets its name when it is durable and its digests are those of `expect`, so a file
        that can be opened was whole once. `replace` is for a damaged one: that goes only then."""
        ...

    def settle(self, name: str, manifest: bytes) -> None:
        """Commit a place that was filled by `put`. Nothing to do where it is committed already."""
        ...
