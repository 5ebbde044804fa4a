"""Private folders for files on their way into or out of an output. What a killed process left is swept."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path

from holdfast.stores.os_errors import store_errors

_NAME = re.compile(r"holdfast-([0-9a-f-]{36})-e([0-9]{8})-r[0-9]{5}-[0-9a-f]{8}", re.ASCII)


class Scratch:
    """The scratch folders of one process. `uuid` and `epoch` are the run's: a folder of the same run with a
    lower epoch belongs to a process that can no longer commit anything."""

    def __init__(self, default: str, *, uuid: str, epoch: int, rank: int = 0, sweeps: bool = True) -> None:
        self._default = Path(default)
        self._uuid = uuid
        self._epoch = epoch
        self._rank = rank
        self._sweeps = sweeps
        self._swept: set[Path] = set()
        self._made: set[Path] = set()

    def make(self, root: str | os.PathLike[str] | None = None) -> Path:
        """A new empty folder that only this user can enter, below `root`."""
        place = self._default if root is None else Path(os.path.abspath(root))
        with store_errors("make a scratch folder", str(place)):
            place.mkdir(parents=True, exist_ok=True)
            if self._sweeps and place not in self._swept:
                self._swept.add(place)
                self._sweep(place)
            name = f"holdfast-{self._uuid}-e{self._epoch:08d}-r{self._rank:05d}-{os.urandom(4).hex()}"
            folder = place / name
            folder.mkdir(mode=0o700)
        self._made.add(folder)
        return folder

    def remove(self, folder: Path) -> None:
        """Never raises: a folder too many hurts nobody, and the next process sweeps it."""
        self._made.discard(folder)
        _remove(folder)

    def close(self) -> None:
        for folder in list(self._made):
            self.remove(folder)

    def _sweep(self, place: Path) -> None:
        for name in os.listdir(place):
            match = _NAME.fullmatch(name)
            if match and match[1] == self._uuid and int(match[2]) < self._epoch:
                _remove(place / name)


def _remove(folder: Path) -> None:
    if folder.is_symlink():
        return
    with contextlib.suppress(OSError):
        # What was restored is read-only, its folders included.
        for inside, _, _ in os.walk(folder):
            os.chmod(inside, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
