"""A file of somebody else's program, offered to a store as if it were an image. Never writes to it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoints.verified import allocate_pages
from holdfast.errors import TornSnapshot


@dataclass(frozen=True)
class FileSign:
    """What tells one version of a file from the next without reading it."""

    inode: int
    size: int
    mtime_ns: int


def sign_of(path: Path) -> FileSign | None:
    """None for whatever is not a plain file, links included: following one could read anything."""
    try:
        found = path.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return FileSign(found.st_ino, found.st_size, found.st_mtime_ns)


def is_inside(path: object) -> bool:
    """Whether a name stays below its folder. Manifests are read by whoever may write them."""
    if not isinstance(path, str) or not path or "\0" in path:
        return False
    return not os.path.isabs(path) and ".." not in Path(path).parts


class FileImage:
    """Satisfies ImageSource and StoredFile. Holds the file open, so that a program may replace it meanwhile;
    one that writes into it instead is noticed by `require_unchanged`."""

    concurrent = True

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        found = os.fstat(self._file)
        self.mode = found.st_mode & 0o777
        self.sign = FileSign(found.st_ino, found.st_size, found.st_mtime_ns)

    @property
    def size(self) -> int:
        return self.sign.size

    def view(self, start: int, stop: int) -> memoryview:
        memory = allocate_pages(stop - start)
        self.read_into(start, memory[: min(stop, self.size) - start])
        return memory

    def read_into(self, offset: int, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            got = os.preadv(self._file, [buffer[done:]], offset + done)
            if got == 0:
                raise TornSnapshot(f"{self.path} became shorter while it was read")
            done += got

    def require_unchanged(self) -> None:
        """TornSnapshot if somebody wrote into the file since it was opened."""
        found = os.fstat(self._file)
        if FileSign(found.st_ino, found.st_size, found.st_mtime_ns) != self.sign:
            raise TornSnapshot(
                f"{self.path} changed while it was read", hint="it is read again when it rests"
            )

    def close(self) -> None:
        os.close(self._file)
