"""A file tree in memory behind the StoreIO seam: fast enough to try a hundred thousand crash states."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass, field

from holdfast.format.checksum import digest
from holdfast.stores.io import Kind

ROOT = 0


@dataclass
class Tree:
    """Directories and files by inode number. `ROOT` is the store's own directory."""

    directories: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    files: dict[int, bytearray] = field(default_factory=dict)

    def add_directory(self, parent: int, name: str, inode: int) -> None:
        self.directories[parent][name] = inode
        self.directories.setdefault(inode, {})

    def add_file(self, parent: int, name: str, inode: int) -> None:
        self.directories[parent][name] = inode
        self.files.setdefault(inode, bytearray())

    def write(self, inode: int, offset: int, data: bytes) -> None:
        content = self.files.setdefault(inode, bytearray())
        if len(content) < offset + len(data):
            content.extend(bytes(offset + len(data) - len(content)))
        content[offset : offset + len(data)] = data

    def resize(self, inode: int, size: int) -> None:
        content = self.files.setdefault(inode, bytearray())
        del content[size:]
        content.extend(bytes(size - len(content)))

    def fingerprint(self) -> tuple[tuple[str, str], ...]:
        """Equal for equal trees as seen from the root, whatever their inode numbers."""
        seen: list[tuple[str, str]] = []
        queue = [("", ROOT)]
        while queue:
            path, inode = queue.pop()
            for name, child in self.directories[inode].items():
                if child in self.directories:
                    seen.append((f"{path}/{name}", "directory"))
                    queue.append((f"{path}/{name}", child))
                else:
                    seen.append((f"{path}/{name}", digest(self.files[child])))
        return tuple(sorted(seen))


class MemoryIO:
    """Satisfies StoreIO over a Tree. One tree may serve several stores, which then share its locks."""

    def __init__(self, tree: Tree | None = None, *, free_bytes: int = 1 << 40) -> None:
        self.tree = tree if tree is not None else Tree()
        self._free_bytes = free_bytes
        self._handles: dict[int, int] = {}
        self._next = 1000
        self._locked: set[int] = set()
        self._changing = threading.RLock()

    def inode_of(self, handle: int) -> int:
        try:
            return self._handles[handle]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None

    def open_root(self, path: str, *, create: bool) -> int:
        return self._open(ROOT)

    def open_directory(self, parent: int, name: str) -> int:
        inode = self._find(parent, name)
        if inode not in self.tree.directories:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
        return self._open(inode)

    def make_directory(self, parent: int, name: str) -> None:
        with self._changing:
            self._require_free(parent, name)
            self.tree.add_directory(self.inode_of(parent), name, self._new_inode())

    def create(self, parent: int, name: str, *, direct: bool = False) -> int:
        with self._changing:
            self._require_free(parent, name)
            inode = self._new_inode()
            self.tree.add_file(self.inode_of(parent), name, inode)
            return self._open(inode)

    def open_read(self, parent: int, name: str, *, direct: bool = False) -> int:
        inode = self._find(parent, name)
        if inode not in self.tree.files:
            raise OSError(errno.ELOOP, "not a regular file", name)
        return self._open(inode)

    def preallocate(self, file: int, size: int) -> None:
        with self._changing:
            inode = self.inode_of(file)
            self.tree.resize(inode, max(size, len(self.tree.files[inode])))

    def write_at(self, file: int, data: memoryview, offset: int) -> int:
        with self._changing:
            self.tree.write(self.inode_of(file), offset, bytes(data))
        return len(data)

    def read_at(self, file: int, buffer: memoryview, offset: int) -> int:
        content = self.tree.files[self.inode_of(file)]
        got = max(0, min(len(buffer), len(content) - offset))
        buffer[:got] = content[offset : offset + got]
        return got

    def truncate(self, file: int, size: int) -> None:
        with self._changing:
            self.tree.resize(self.inode_of(file), size)

    def fsync(self, file: int) -> None:
        self.inode_of(file)

    def fsync_directory(self, directory: int) -> None:
        self.inode_of(directory)

    def size(self, file: int) -> int:
        return len(self.tree.files[self.inode_of(file)])

    def close(self, handle: int) -> None:
        self.inode_of(handle)
        del self._handles[handle]

    def rename(self, parent: int, old: str, new: str) -> None:
        with self._changing:
            self._find(parent, old)
            self._require_free(parent, new)
            entries = self.tree.directories[self.inode_of(parent)]
            entries[new] = entries.pop(old)

    def replace(self, parent: int, old: str, new: str) -> None:
        with self._changing:
            self._find(parent, old)
            entries = self.tree.directories[self.inode_of(parent)]
            entries[new] = entries.pop(old)

    def unlink(self, parent: int, name: str) -> None:
        with self._changing:
            if self._find(parent, name) in self.tree.directories:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
            # The content stays for whoever has it open.
            del self.tree.directories[self.inode_of(parent)][name]

    def remove_directory(self, parent: int, name: str) -> None:
        with self._changing:
            if self.tree.directories[self._find(parent, name)]:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), name)
            del self.tree.directories[self.inode_of(parent)][name]

    def list_names(self, directory: int) -> list[str]:
        return list(self.tree.directories[self.inode_of(directory)])

    def kind(self, parent: int, name: str) -> Kind | None:
        inode = self.tree.directories[self.inode_of(parent)].get(name)
        if inode is None:
            return None
        return "file" if inode in self.tree.files else "directory"

    def free_bytes(self, directory: int) -> int:
        return self._free_bytes

    def append(self, parent: int, name: str, data: bytes) -> None:
        with self._changing:
            entries = self.tree.directories[self.inode_of(parent)]
            if name not in entries:
                self.tree.add_file(self.inode_of(parent), name, self._new_inode())
            self.tree.files[entries[name]].extend(data)

    def lock(self, parent: int, name: str) -> int | None:
        with self._changing:
            entries = self.tree.directories[self.inode_of(parent)]
            if name not in entries:
                self.tree.add_file(self.inode_of(parent), name, self._new_inode())
            if entries[name] in self._locked:
                raise BlockingIOError(errno.EAGAIN, "held", name)
            self._locked.add(entries[name])
            return self._open(entries[name])

    def unlock(self, handle: int) -> None:
        self._locked.discard(self.inode_of(handle))
        self.close(handle)

    def process_died(self) -> None:
        """What the kernel does then: close everything, drop the locks, keep the files."""
        self._handles.clear()
        self._locked.clear()

    @property
    def open_handles(self) -> int:
        """How many nobody has closed: a leak if a store is done."""
        return len(self._handles)

    def _open(self, inode: int) -> int:
        with self._changing:
            self._next += 1
            self._handles[self._next] = inode
            return self._next

    def _new_inode(self) -> int:
        return 1 + max([*self.tree.directories, *self.tree.files])

    def _find(self, parent: int, name: str) -> int:
        try:
            return self.tree.directories[self.inode_of(parent)][name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None

    def _require_free(self, parent: int, name: str) -> None:
        if name in self.tree.directories[self.inode_of(parent)]:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
