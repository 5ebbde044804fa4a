"""A StoreIO that hands every call to another one, through a single point where a double can step in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from holdfast.stores.io import Kind, StoreIO

T = TypeVar("T")


class ForwardingIO:
    """Override `_pass` to see, delay, fail or refuse every call; `verb` is the method's name."""

    def __init__(self, inner: StoreIO) -> None:
        self.inner = inner

    def _pass(self, verb: str, call: Callable[[], T]) -> T:
        return call()

    def open_root(self, path: str, *, create: bool) -> int:
        return self._pass("open_root", lambda: self.inner.open_root(path, create=create))

    def open_directory(self, parent: int, name: str) -> int:
        return self._pass("open_directory", lambda: self.inner.open_directory(parent, name))

    def make_directory(self, parent: int, name: str) -> None:
        self._pass("make_directory", lambda: self.inner.make_directory(parent, name))

    def create(self, parent: int, name: str, *, direct: bool = False) -> int:
        return self._pass("create", lambda: self.inner.create(parent, name, direct=direct))

    def open_read(self, parent: int, name: str, *, direct: bool = False) -> int:
        return self._pass("open_read", lambda: self.inner.open_read(parent, name, direct=direct))

    def preallocate(self, file: int, size: int) -> None:
        self._pass("preallocate", lambda: self.inner.preallocate(file, size))

    def write_at(self, file: int, data: memoryview, offset: int) -> int:
        return self._pass("write_at", lambda: self.inner.write_at(file, data, offset))

    def read_at(self, file: int, buffer: memoryview, offset: int) -> int:
        return self._pass("read_at", lambda: self.inner.read_at(file, buffer, offset))

    def truncate(self, file: int, size: int) -> None:
        self._pass("truncate", lambda: self.inner.truncate(file, size))

    def fsync(self, file: int) -> None:
        self._pass("fsync", lambda: self.inner.fsync(file))

    def fsync_directory(self, directory: int) -> None:
        self._pass("fsync_directory", lambda: self.inner.fsync_directory(directory))

    def size(self, file: int) -> int:
        return self._pass("size", lambda: self.inner.size(file))

    def close(self, handle: int) -> None:
        self._pass("close", lambda: self.inner.close(handle))

    def rename(self, parent: int, old: str, new: str) -> None:
        self._pass("rename", lambda: self.inner.rename(parent, old, new))

    def replace(self, parent: int, old: str, new: str) -> None:
        self._pass("replace", lambda: self.inner.replace(parent, old, new))

    def unlink(self, parent: int, name: str) -> None:
        self._pass("unlink", lambda: self.inner.unlink(parent, name))

    def remove_directory(self, parent: int, name: str) -> None:
        self._pass("remove_directory", lambda: self.inner.remove_directory(parent, name))

    def list_names(self, directory: int) -> list[str]:
        return self._pass("list_names", lambda: self.inner.list_names(directory))

    def kind(self, parent: int, name: str) -> Kind | None:
        return self._pass("kind", lambda: self.inner.kind(parent, name))

    def free_bytes(self, directory: int) -> int:
        return self._pass("free_bytes", lambda: self.inner.free_bytes(directory))

    def append(self, parent: int, name: str, data: bytes) -> None:
        self._pass("append", lambda: self.inner.append(parent, name, data))

    def lock(self, parent: int, name: str) -> int | None:
        return self._pass("lock", lambda: self.inner.lock(parent, name))

    def unlock(self, handle: int) -> None:
        self._pass("unlock", lambda: self.inner.unlock(handle))
