"""Write down everything that reaches the disk, in order, so that crashes can be replayed from it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Literal

from holdfast.stores.io import StoreIO
from holdfast.testing.forwarding_io import ForwardingIO
from holdfast.testing.memory_io import ROOT

DataVerb = Literal["write", "resize", "grow"]
NameVerb = Literal["make_directory", "create", "rename", "unlink", "remove_directory"]


@dataclass(frozen=True)
class DataOp:
    """Bytes of one file. `offset` doubles as the size for resize and grow."""

    verb: DataVerb
    inode: int
    offset: int
    data: bytes = b""


@dataclass(frozen=True)
class NameOp:
    """One entry of one directory. `inode` is what `name` leads to; `old` is set for a rename."""

    verb: NameVerb
    directory: int
    name: str
    inode: int
    old: str = ""


@dataclass(frozen=True)
class SyncOp:
    """From here on, everything earlier of this file's data, or this directory's names, is durable."""

    inode: int
    is_directory: bool
    # Where in the store, for people: "ckpt/e…/MANIFEST.part".
    path: str


@dataclass(frozen=True)
class Mark:
    """Something the test says in between, such as "saved" with the checkpoint's name."""

    label: str
    value: str


Op = DataOp | NameOp | SyncOp | Mark


@dataclass
class Recording:
    ops: list[Op] = field(default_factory=list)

    def mark(self, label: str, value: str = "") -> None:
        """Note a promise made to the outside world at this point."""
        self.ops.append(Mark(label, value))


class RecordingIO(ForwardingIO):
    """Records what passes to `inner`, which must begin with an empty root. Failed calls leave no trace."""

    def __init__(self, inner: StoreIO) -> None:
        super().__init__(inner)
        self.recording = Recording()
        self._inodes: dict[int, int] = {}
        self._entries: dict[tuple[int, str], int] = {}
        self._paths: dict[int, str] = {ROOT: ""}
        self._noting = threading.Lock()

    def _note(self, op: Op) -> None:
        with self._noting:
            self.recording.ops.append(op)

    def _name(self, verb: NameVerb, parent: int, name: str) -> int:
        """Note a new entry and give its inode."""
        directory = self._inodes[parent]
        inode = len(self._paths)
        self._entries[directory, name] = inode
        self._paths[inode] = f"{self._paths[directory]}/{name}".lstrip("/")
        self._note(NameOp(verb, directory, name, inode))
        return inode

    def open_root(self, path: str, *, create: bool) -> int:
        handle = super().open_root(path, create=create)
        self._inodes[handle] = ROOT
        return handle

    def open_directory(self, parent: int, name: str) -> int:
        handle = super().open_directory(parent, name)
        self._inodes[handle] = self._entries[self._inodes[parent], name]
        return handle

    def make_directory(self, parent: int, name: str) -> None:
        super().make_directory(parent, name)
        self._name("make_directory", parent, name)

    def create(self, parent: int, name: str, *, direct: bool = False) -> int:
        handle = super().create(parent, name, direct=direct)
        self._inodes[handle] = self._name("create", parent, name)
        return handle

    def open_read(self, parent: int, name: str, *, direct: bool = False) -> int:
        handle = super().open_read(parent, name, direct=direct)
        self._inodes[handle] = self._entries[self._inodes[parent], name]
        return handle

    def preallocate(self, file: int, size: int) -> None:
        super().preallocate(file, size)
        self._note(DataOp("grow", self._inodes[file], size))

    def write_at(self, file: int, data: memoryview, offset: int) -> int:
        written = super().write_at(file, data, offset)
        self._note(DataOp("write", self._inodes[file], offset, bytes(data[:written])))
        return written

    def truncate(self, file: int, size: int) -> None:
        super().truncate(file, size)
        self._note(DataOp("resize", self._inodes[file], size))

    def fsync(self, file: int) -> None:
        super().fsync(file)
        inode = self._inodes[file]
        self._note(SyncOp(inode, False, self._paths[inode]))

    def fsync_directory(self, directory: int) -> None:
        super().fsync_directory(directory)
        inode = self._inodes[directory]
        self._note(SyncOp(inode, True, self._paths[inode]))

    def rename(self, parent: int, old: str, new: str) -> None:
        super().rename(parent, old, new)
        self._renamed(parent, old, new)

    def replace(self, parent: int, old: str, new: str) -> None:
        super().replace(parent, old, new)
        self._renamed(parent, old, new)

    def _renamed(self, parent: int, old: str, new: str) -> None:
        directory = self._inodes[parent]
        inode = self._entries.pop((directory, old))
        self._entries[directory, new] = inode
        self._note(NameOp("rename", directory, new, inode, old))

    def unlink(self, parent: int, name: str) -> None:
        super().unlink(parent, name)
        directory = self._inodes[parent]
        self._note(NameOp("unlink", directory, name, self._entries.pop((directory, name))))

    def remove_directory(self, parent: int, name: str) -> None:
        super().remove_directory(parent, name)
        directory = self._inodes[parent]
        self._note(NameOp("remove_directory", directory, name, self._entries.pop((directory, name))))
