"""The narrow seam between holdfast and a file system: every system call a store makes passes through here.

So a test can record, fail or cut off any one of them. Implementations raise plain OSError and decide
nothing; what an error means, and what to do about it, is the store's business.
"""

from __future__ import annotations

from typing import Literal, Protocol

Kind = Literal["file", "directory", "other"]


class StoreIO(Protocol):
    """Handles are descriptors. A `name` is one path component, always taken relative to an open directory,
    and a symbolic link is never followed."""

    def open_root(self, path: str, *, create: bool) -> int:
        """The store's own directory. With `create`, missing ones are made, each durably."""
        ...

    def open_directory(self, parent: int, name: str) -> int: ...

    def make_directory(self, parent: int, name: str) -> None:
        """FileExistsError if the name is taken."""
        ...

    def create(self, parent: int, name: str, *, direct: bool = False) -> int:
        """A new empty file to write; FileExistsError if the name is taken. `direct` asks for writes past
        the page cache; where the file system refuses, the file is an ordinary one."""
        ...

    def open_read(self, parent: int, name: str, *, direct: bool = False) -> int:
        """An existing regular file. Anything else (link, pipe, device) is an OSError, at once."""
        ...

    def preallocate(self, file: int, size: int) -> None:
        """Reserve the blocks, so that a full disk shows now. Nothing where that is not native."""
        ...

    def write_at(self, file: int, data: memoryview, offset: int) -> int:
        """Bytes written, which may be fewer than asked."""
        ...

    def read_at(self, file: int, buffer: memoryview, offset: int) -> int:
        """Bytes read, which may be fewer than asked; 0 at the end."""
        ...

    def truncate(self, file: int, size: int) -> None: ...

    def fsync(self, file: int) -> None: ...

    def fsync_directory(self, directory: int) -> None: ...

    def size(self, file: int) -> int: ...

    def close(self, handle: int) -> None: ...

    def rename(self, parent: int, old: str, new: str) -> None:
        """FileExistsError if `new` is taken."""
        ...

    def replace(self, parent: int, old: str, new: str) -> None:
        """Rename over `new` at once. Only to put something right in the place of something damaged."""
        ...

    def unlink(self, parent: int, name: str) -> None: ...

    def remove_directory(self, parent: int, name: str) -> None: ...

    def list_names(self, directory: int) -> list[str]: ...

    def kind(self, parent: int, name: str) -> Kind | None:
        """What is there, not following a link; None if nothing."""
        ...

    def free_bytes(self, directory: int) -> int:
        """What this user may still write."""
        ...

    def append(self, parent: int, name: str, data: bytes) -> None:
        """Add to a log, creating it; one write call, not durable."""
        ...

    def lock(self, parent: int, name: str) -> int | None:
        """Hold the lock file until `unlock`; BlockingIOError if another process (or this one) holds it;
        None where the file system has no locks."""
        ...

    def unlock(self, handle: int) -> None: ...
