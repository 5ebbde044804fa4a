"""What a user left in a scratch folder, as files for a store: all of it, closed, and only plain files."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoints.file_image import FileImage, FileSign, is_inside
from holdfast.errors import CorruptCheckpoint, SaveError, TornSnapshot
from holdfast.format.manifest import FileRecord
from holdfast.format.names import of_rank

ROLE = "output"
_OPEN_FILES = "/proc/self/fd"


class OutputFile:
    """Satisfies ImageSource. Opened when its first byte is wanted and closed behind its last: an output may
    have more files than a process may have open."""

    concurrent = False

    def __init__(self, name: str, path: Path, shown: str) -> None:
        found = path.lstat()
        self.name = name
        self.shown = shown
        self.mode = found.st_mode & 0o777
        self.sign = FileSign(found.st_ino, found.st_size, found.st_mtime_ns)
        self._path = path
        self._image: FileImage | None = None

    @property
    def size(self) -> int:
        return self.sign.size

    @property
    def words(self) -> dict[str, Any]:
        return {"path": self.shown, "mode": self.mode, "mtime_ns": self.sign.mtime_ns}

    def view(self, start: int, stop: int) -> memoryview:
        image = self._image or self._open()
        memory = image.view(start, stop)
        if stop >= self.size:
            image.require_unchanged()
            self.close()
        return memory

    def _open(self) -> FileImage:
        try:
            self._image = FileImage(self.name, self._path)
        except OSError as error:
            raise SaveError(f"cannot read {self._path}: {error.strerror}") from error
        if self._image.sign != self.sign:
            raise TornSnapshot(f"{self._path} changed behind the end of its with block")
        return self._image

    def close(self) -> None:
        if self._image is not None:
            self._image.close()
            self._image = None


def collect(folder: Path, promised: Collection[str], rank: int | None) -> list[OutputFile]:
    """Every file below `folder`, in the order of their names. SaveError if one of them cannot be vouched for.

    `promised` are the names that `path()` gave out.
    """
    found: dict[str, Path] = {}
    for inside, folders, names in os.walk(folder, onerror=_cannot_list):
        # Links to folders too: they are listed among the folders, and would be passed over in silence.
        for name in (*names, *(one for one in folders if os.path.islink(os.path.join(inside, one)))):
            path = Path(inside, name)
            found[path.relative_to(folder).as_posix()] = path
    missing = sorted(set(promised) - set(found))
    if missing:
        raise SaveError(
            f"nothing was written to {missing[0]!r}", hint="write every file that path() was asked for"
        )
    _refuse_what_is_still_written(folder)
    files = []
    for number, (shown, path) in enumerate(sorted(found.items())):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise SaveError(f"{shown!r} is not a plain file", hint="copy what a link points to")
        if not is_inside(shown) or not shown.isprintable():
            raise SaveError(f"{shown!r} cannot be kept under this name", hint="use a name of printable text")
        name = f"file-{number:05d}.out"
        files.append(OutputFile(name if rank is None else of_rank(name, rank), path, shown))
    return files


def _cannot_list(error: OSError) -> None:
    raise SaveError(f"cannot list {error.filename}: {error.strerror}") from error


def _refuse_what_is_still_written(folder: Path) -> None:
    """Bytes that still wait in a buffer of this process would be missing from what is committed."""
    top = os.path.realpath(folder) + os.sep
    try:
        numbers = os.listdir(_OPEN_FILES)
    except OSError:
        return  # not Linux: the user's own care must do
    for number in numbers:
        try:
            target = os.readlink(f"{_OPEN_FILES}/{number}")
            if not target.startswith(top) or not _is_for_writing(number):
                continue
        except OSError:
            continue
        raise SaveError(
            f"{target.removeprefix(top)!r} is still open for writing",
            hint="close it (and drop memory maps of it) before the with block of the output ends",
        )


def _is_for_writing(number: str) -> bool:
    with open(f"/proc/self/fdinfo/{number}", encoding="ascii") as lines:
        flags = next(line.split()[1] for line in lines if line.startswith("flags:"))
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


@dataclass(frozen=True)
class StoredOutput:
    """One stored file: what it is called outside, and its permissions there."""

    record: FileRecord
    path: str
    mode: int
    mtime_ns: int


def stored_files(words: Mapping[str, Any], records: Mapping[str, FileRecord]) -> list[StoredOutput]:
    """What a manifest or a rank's record says of its files. Whoever may write there must not be able to make
    us write elsewhere, or to make a file set-uid."""
    said = words.get("files")
    if not isinstance(said, dict):
        raise CorruptCheckpoint("it holds no files of an output")
    files = []
    for name, entry in said.items():
        known = isinstance(entry, dict) and name in records and is_inside(entry.get("path"))
        mode, mtime = (entry.get("mode"), entry.get("mtime_ns")) if known else (None, None)
        if type(mode) is not int or type(mtime) is not int or mtime < 0:
            raise CorruptCheckpoint(f"what it says of the file {name!r} cannot be read")
        files.append(StoredOutput(records[name], entry["path"], mode & 0o777, mtime))
    return files
