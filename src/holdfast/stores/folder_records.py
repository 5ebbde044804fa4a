"""The records of a store in a folder: its identity, its claims, its lock. All passes through StoreIO."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from holdfast.errors import HoldfastError
from holdfast.stores.durable_write import write_small
from holdfast.stores.identity import MAX_BYTES, RECORD, parse_identity
from holdfast.stores.io import StoreIO
from holdfast.stores.os_errors import store_errors
from holdfast.stores.ownership import refuse_planted, say_open
from holdfast.stores.parts import new_part
from holdfast.stores.posix import PosixIO
from holdfast.stores.stored_file import read_small

LOCK = "LOCK"


class Folders:
    """The directories of one store. Opened anew for each use: a store may move away and come back."""

    def __init__(self, io: StoreIO, where: str) -> None:
        self._io = io
        self._where = where
        self._held = threading.local()

    @contextlib.contextmanager
    def inside(self, *path: str, doing: str) -> Iterator[int]:
        """The directory at `path` below the root. Any OSError meanwhile becomes "cannot `doing` in …"."""
        with store_errors(doing, self._where), contextlib.ExitStack() as opened:
            held: dict[str, int] = getattr(self._held, "folders", {})
            directory = held.get("")
            if directory is None:
                directory = opened.enter_context(self.root())
            for depth, name in enumerate(path):
                above, directory = directory, held.get(name) if depth == 0 else None
                if directory is None:
                    directory = opened.enter_context(self.below(above, name))
            yield directory

    @contextlib.contextmanager
    def hold(self, *names: str) -> Iterator[None]:
        """Meanwhile all that this thread does shares one root, and one handle of each of these below it."""
        if getattr(self._held, "folders", None):
            yield
            return
        with contextlib.ExitStack() as opened:
            with store_errors("open", self._where):
                folders = {"": opened.enter_context(self.root())}
                for name in names:
                    folders[name] = opened.enter_context(self.below(folders[""], name))
            self._held.folders = folders
            try:
                yield
            finally:
                self._held.folders = {}

    @contextlib.contextmanager
    def root(self, *, create: bool = False) -> Iterator[int]:
        root = self._io.open_root(self._where, create=create)
        with self._closed_after(root):
            yield root

    @contextlib.contextmanager
    def below(self, parent: int, name: str) -> Iterator[int]:
        directory = self._io.open_directory(parent, name)
        with self._closed_after(directory):
            yield directory

    @contextlib.contextmanager
    def _closed_after(self, directory: int) -> Iterator[None]:
        try:
            yield
        finally:
            # Nothing was written through the handle of a directory that its close could lose.
            with contextlib.suppress(OSError):
                self._io.close(directory)


class FolderRecords:
    """What Place asks for the store itself, in a folder."""

    is_exclusive = True
    reads_fail_alone = True

    def __init__(self, path: str | os.PathLike[str], io: StoreIO | None = None) -> None:
        self.where = os.path.abspath(os.fspath(path))
        refuse_planted(self.where)
        self._io: StoreIO = io if io is not None else PosixIO()
        self._folders = Folders(self._io, self.where)
        self._lock: int | None = None

    def hold(self, *folders: str) -> contextlib.AbstractContextManager[None]:
        return self._folders.hold(*folders)

    def probe(self) -> None:
        """Nothing to find out: exclusive create works on every file system."""

    def prepare(self, *folders: str) -> None:
        with store_errors("make a folder", self.where), self._folders.root(create=True) as root:
            # Again: somebody may have made it since.
            refuse_planted(self.where)
            say_open(self.where)
            for name in folders:
                if self._io.kind(root, name) is None:
                    with contextlib.suppress(FileExistsError):
                        self._io.make_directory(root, name)

    def sync(self) -> None:
        with self._folders.inside(doing="make a folder durable") as root:
            self._io.fsync_directory(root)

    def lock(self) -> bool | None:
        with self._folders.inside(doing="lock") as root:
            try:
                self._lock = self._io.lock(root, LOCK)
            except BlockingIOError:
                return False
        return True if self._lock is not None else None

    def let_go(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            with store_errors("unlock", self.where):
                self._io.unlock(lock)

    def entries(self, folder: str, *, after: str = "") -> list[str]:
        with self._folders.inside(folder, doing=f"list {folder}") as opened:
            return self._io.list_names(opened)

    def read(self, path: str, limit: int) -> bytes:
        *folders, name = path.split("/")
        with self._folders.inside(*folders, doing=f"read {path}") as folder:
            return read_small(self._io, folder, name, limit)

    def create(self, path: str, data: bytes) -> None:
        *folders, name = path.split("/")
        with self._folders.inside(*folders, doing=f"write {path}") as folder:
            write_small(self._io, folder, name, data)
            self._io.fsync_directory(folder)

    def create_whole(self, path: str, data: bytes) -> None:
        *folders, name = path.split("/")
        with self._folders.inside(*folders, doing=f"write {path}") as folder:
            part = f"{name}.{os.urandom(4).hex()}.part"
            write_small(self._io, folder, part, data)
            try:
                self._io.rename(folder, part, name)
            except FileExistsError:
                self._io.unlink(folder, part)
                raise

    def replace(self, path: str, data: bytes) -> None:
        *folders, name = path.split("/")
        with self._folders.inside(*folders, doing=f"replace {path}") as folder:
            part = new_part()
            write_small(self._io, folder, part, data)
            self._io.replace(folder, part, name)
            self._io.fsync_directory(folder)

    def is_copy_of(self, other: str, uuid: str) -> bool:
        if other == self.where or _is_same_folder(other, self.where):
            return False
        try:
            there = FolderRecords(other, self._io).read(RECORD, MAX_BYTES)
            return parse_identity(there, other).uuid == uuid
        except HoldfastError:
            return False  # Not there any more, or not to be seen from here: this one was moved.

    def set_aside(self, path: str, suffix: str) -> None:
        with self._folders.inside(doing=f"set {path} aside") as root:
            self._io.rename(root, path, f"{path}.{os.urandom(4).hex()}{suffix}")


def _is_same_folder(place: str, where: str) -> bool:
    # One file system mounted twice may have two device numbers. Not by a file: copies may be hard links.
    try:
        return os.stat(place).st_ino == os.stat(where).st_ino
    except OSError:
        return False
