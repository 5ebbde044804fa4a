"""What a store asks of the place that its bytes lie in: a folder, or a bucket.

A place keeps named checkpoints with named entries, and a few records of the store itself, by their paths:

    STORE.json   writers/<epoch>.json   ckpt/<name>/<file>   ckpt/<name>/MANIFEST

It knows how to make things durable here and in which order they go. Who may write, what is committed and what
may be removed is the store's business (store.py).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from holdfast.format.manifest import FileRecord
from holdfast.stores.base import ImageSource, StoredFile

CKPT, WRITERS = "ckpt", "writers"

State = Literal["committed", "begun", "copy"]


class Place(Protocol):
    """Raises StoreErrors: KeyTaken where a name is taken, StoreNotFound where nothing is."""

    @property
    def where(self) -> str: ...

    @property
    def is_exclusive(self) -> bool:
        """Whether `create` tells two creators apart. Known once `probe` was called."""
        ...

    @property
    def reads_fail_alone(self) -> bool:
        """Whether one record may be unreadable while the one beside it is fine, as on a disk."""
        ...

    # ---- the store's own records

    def probe(self) -> None:
        """Before anything is written: find out what the place can promise."""
        ...

    def prepare(self, *folders: str) -> None:
        """Make the place and these folders in it, where they are missing."""
        ...

    def sync(self) -> None:
        """Make what is directly in the place durable, whoever made it."""
        ...

    def hold(self, *folders: str) -> AbstractContextManager[None]:
        """Meanwhile the calls of this thread share what each would have to open."""
        ...

    def lock(self) -> bool | None:
        """True: this process holds the lock now. False: another one does. None: there are no locks here."""
        ...

    def let_go(self) -> None:
        """Give back the lock, and whatever is held open."""
        ...

    def entries(self, folder: str, *, after: str = "") -> list[str]:
        """What is below `folder`; of those, only what sorts behind `after` has to be there."""
        ...

    def read(self, path: str, limit: int) -> bytes:
        """A record whole. CorruptCheckpoint if it is larger than it may be."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Write a record unless the path is taken (KeyTaken). A crash may leave it torn."""
        ...

    def create_whole(self, path: str, data: bytes) -> None:
        """The same, but it appears only when all of it is durable."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Put a right record in the place of a damaged one, at once."""
        ...

    def is_copy_of(self, other: str, uuid: str) -> bool:
        """Whether another store with this uuid lies at `other`, of which this one is a copy."""
        ...

    def set_aside(self, path: str, suffix: str) -> None:
        """Rename a record; it is kept for people."""
        ...

    # ---- checkpoints

    def listing(self) -> dict[str, list[str]]:
        """Every checkpoint that has its name, committed or not, with the names inside it."""
        ...

    def copies(self) -> list[str]:
        """The checkpoints that are being filled beside their names: whoever comes next can go on."""
        ...

    def state(self, name: str) -> State | None:
        """What there is of this checkpoint: "begun" by a save, or by a "copy" that anybody can go on with."""
        ...

    def free_bytes(self) -> int | None:
        """What may still be written; None where nobody can know."""
        ...

    def begin(self, name: str) -> None:
        """Make room for a new checkpoint. KeyTaken if there is anything of it."""
        ...

    def begin_copy(self, name: str) -> None:
        """The same for one that a later process can go on with. Nothing to do where it was begun before."""
        ...

    def write(self, name: str, source: ImageSource) -> FileRecord:
        """A file of a checkpoint that was begun and is not committed, durably. KeyTaken if it is there."""
        ...

    def add(
        self, name: str, source: ImageSource, expect: FileRecord | None, *, replace: bool = False
    ) -> FileRecord:
        """A file of any checkpoint. It gets its name when it is durable and right: CorruptCheckpoint if it is
        not what `expect` says. `replace` puts it in the place of a damaged one."""
        ...

    def commit(self, name: str, manifest: bytes, check: Callable[[], None]) -> None:
        """Durable when this returns, invisible if it never does. `check` is called right before."""
        ...

    def bury(self, name: str) -> None:
        """Uncommit. StoreNotFound if it is not committed. Durable once `clear` removes anything."""
        ...

    def clear(self, name: str) -> None:
        """Remove what there is of a checkpoint. InternalError if it is committed."""
        ...

    def held(self, name: str) -> dict[str, int]:
        """The files that are here, with their sizes, committed or not."""
        ...

    def open(self, name: str, file: str) -> StoredFile: ...

    def descriptor(self, name: str, file: str) -> AbstractContextManager[int | None]:
        """An open file to send from through the page cache; None where there is no such thing."""
        ...
