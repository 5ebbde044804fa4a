"""What holdfast asks of a place that keeps checkpoints, and what such a place declares about itself.

A store knows named places with named files and one commit record each. It does not know what is inside.
Everything in it is written once: no verb overwrites, none reuses a name, only `retire` removes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from holdfast.errors import StoreError
from holdfast.format.manifest import FileRecord

PAGE = 4096


class KeyTaken(StoreError):
    """There is something under this name already, and names are never reused."""


class ImageSource(Protocol):
    """The bytes of one file to write, in memory or produced on demand."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def concurrent(self) -> bool:
        """Whether `view` may be called from several threads, in any order. If not: once each, ascending."""
        ...

    def view(self, start: int, stop: int) -> memoryview:
        """Bytes [start, stop), page-aligned in memory. `stop` may reach `size` rounded up to a page; what
        lies behind `size` is padding and never becomes part of the file."""
        ...


class StoredFile(Protocol):
    """An open committed file. Stays readable while a pruner removes its name."""

    @property
    def size(self) -> int: ...

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`, whole or raise."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class StoreProperties:
    """Tier logic reads these, never class names."""

    survives_process: bool
    survives_node: bool
    survives_job: bool
    # A fire, a flood, a file system that is lost as a whole.
    survives_site: bool = False

    @property
    def survives(self) -> tuple[str, ...]:
        """In words, such as ("process", "node")."""
        lasting = {
            "process": self.survives_process,
            "node": self.survives_node,
            "job": self.survives_job,
            "site": self.survives_site,
        }
        return tuple(what for what, does in lasting.items() if does)


SHARED_DISK = StoreProperties(survives_process=True, survives_node=True, survives_job=True)
NODE_DISK = StoreProperties(survives_process=True, survives_node=False, survives_job=False)
BUCKET = StoreProperties(survives_process=True, survives_node=True, survives_job=True, survives_site=True)


class Store(Protocol):
    @property
    def properties(self) -> StoreProperties: ...

    @property
    def where(self) -> str:
        """What to call this store in a message, such as its path."""
        ...

    @property
    def uuid(self) -> str:
        """Which store this is, as its manifests carry it. Copies of one run share it."""
        ...

    def claim(self, *, at_least: int = 1, take_over: bool = False) -> int:
        """Become the writer; RunInUse while another process is, unless it is taken over. The writer epoch, no
        lower than `at_least`; 0 where there are none."""
        ...

    def release(self) -> None: ...

    def begin(self, name: str, need_bytes: int) -> None:
        """Make the place of a new checkpoint. Raises StoreFull before anything is written."""
        ...

    def write(
        self, name: str, source: ImageSource, *, expect: FileRecord | None = None, replace: bool = False
    ) -> FileRecord:
        """Write one file durably, digesting it on the way.

        With `expect` it gets its name only when its digests are those (CorruptCheckpoint), and nothing need
        have been begun: a copy is made file by file, a later process goes on with it, and a file may be added
        to what is committed. `replace` puts it in the place of a damaged one, which goes only then."""
        ...

    def publish(self, name: str, manifest: bytes) -> None:
        """The commit point: durable when this returns, invisible if it never does. Where the checkpoint is
        committed with this manifest, damaged copies of it are written again."""
        ...

    def abandon(self, name: str) -> None:
        """Remove a place that was begun and never published. Best effort."""
        ...

    def names(self) -> list[str]:
        """Every place that claims to be committed, in no order."""
        ...

    def manifest(self, name: str) -> bytes:
        """The commit record, its own digest checked; CorruptCheckpoint or StoreNotFound otherwise."""
        ...

    def damaged_records(self, name: str, right: bytes) -> list[str]:
        """What is wrong with the copies of the commit record that `right` is, in words."""
        ...

    def open(self, name: str, file: str) -> StoredFile: ...

    def held(self, name: str) -> Mapping[str, int]:
        """The files that are here, with their sizes, whether the manifest lists them or not. StoreNotFound if
        there is nothing of this checkpoint."""
        ...

    def leftovers(self, *, before: str | None = None) -> list[str]:
        """Places begun and never published whose writer cannot come back; safe to `abandon`. With `before`,
        also copies of older checkpoints that could still be finished."""
        ...

    def retire(self, name: str) -> None:
        """Uncommit, durably, then delete."""
        ...
