"""The folders of a node's store: a committed place, or beside its name the one that is being filled.

A place that is being filled bears a name that no checkpoint has, so a DirectoryStore in the same folder
leaves it alone, and it appears under its own name only when its manifest is inside.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from holdfast.errors import StoreNotFound
from holdfast.format.names import is_file_name, parse_checkpoint_name
from holdfast.stores.directory import CKPT, DEAD, MANIFEST, RECORDS
from holdfast.stores.folders import Folders
from holdfast.stores.identity import make_identity
from holdfast.stores.io import StoreIO
from holdfast.stores.node_parts import PART, is_left_behind
from holdfast.stores.os_errors import store_errors

INCOMING, LEAVING = ".incoming", ".leaving"


class NodePlaces:
    """Where the files of each checkpoint lie in one node's folder."""

    def __init__(self, io: StoreIO, where: str) -> None:
        self._io = io
        self._where = where
        self.folders = Folders(io, where)

    @contextlib.contextmanager
    def inside(self, name: str, doing: str) -> Iterator[int]:
        """The committed place, or the one that is being filled; StoreNotFound if there is neither."""
        with store_errors(doing, self._where), contextlib.ExitStack() as opened:
            root = opened.enter_context(self.folders.root())
            ckpt = opened.enter_context(self.folders.below(root, CKPT))
            try:
                place = opened.enter_context(self.folders.below(ckpt, checked(name)))
            except FileNotFoundError:
                place = opened.enter_context(self.folders.below(ckpt, name + INCOMING))
            yield place

    def is_there(self, name: str) -> bool:
        try:
            with self.inside(name, "look for a checkpoint"):
                return True
        except StoreNotFound:
            return False

    def make_incoming(self, name: str, uuid: str | None) -> None:
        with store_errors(f"begin {name}", self._where), self.folders.root(create=True) as root:
            if self._io.kind(root, CKPT) is None:
                with contextlib.suppress(FileExistsError):
                    self._io.make_directory(root, CKPT)
            if uuid is not None:
                make_identity(self._io, root, uuid)
            self._io.fsync_directory(root)
            with self.folders.below(root, CKPT) as ckpt:
                with contextlib.suppress(FileExistsError):
                    self._io.make_directory(ckpt, checked(name) + INCOMING)
                self._io.fsync_directory(ckpt)

    def unsettled(self) -> list[str]:
        """The checkpoints whose places are being filled, or were when their writer died; and those that were
        being taken away."""
        names = (
            folder.removesuffix(INCOMING).removesuffix(LEAVING)
            for folder in self._listed()
            if folder.endswith((INCOMING, LEAVING))
        )
        return sorted({name for name in names if parse_checkpoint_name(name)})

    def retired(self) -> list[str]:
        """Those whose retirement was not finished."""
        try:
            with self.folders.inside(CKPT, doing="list checkpoints") as ckpt:
                return [name for name in self._io.list_names(ckpt) if self._has(ckpt, name, DEAD)]
        except StoreNotFound:
            return []

    def is_committed(self, name: str) -> bool:
        try:
            with self.folders.inside(CKPT, doing=f"look for {name}") as ckpt:
                return self._has(ckpt, name, MANIFEST) and not self._has(ckpt, name, DEAD)
        except StoreNotFound:
            return False

    def take_away(self, name: str) -> bool:
        """Remove what was begun and not settled, if anything.

        It loses its name before its files: whoever still fills it cannot settle it any more, and what was
        settled a moment ago has its own name and stays.
        """
        with self.folders.inside(CKPT, doing=f"remove {name}") as ckpt:
            # Left by one who was killed here.
            was_there = self._remove(ckpt, name + LEAVING)
            try:
                self._io.rename(ckpt, name + INCOMING, name + LEAVING)
            except FileNotFoundError:
                return was_there
            return self._remove(ckpt, name + LEAVING)

    def remove_retired(self, name: str) -> None:
        with self.folders.inside(CKPT, doing=f"remove {name}") as ckpt:
            if self._has(ckpt, name, DEAD):
                self._remove(ckpt, name)

    def _remove(self, ckpt: int, folder: str) -> bool:
        """False if there is none. The tombstone goes last, and stays while anything foreign does: until then
        it says what the rest is."""
        try:
            with self.folders.below(ckpt, folder) as place:
                names = self._io.list_names(place)
                ours = [name for name in names if name in RECORDS or is_file_name(name)]
                for name in sorted(ours, key=lambda name: name == DEAD):
                    if name != DEAD or len(ours) == len(names):
                        with contextlib.suppress(FileNotFoundError):
                            self._io.unlink(place, name)
            self._io.remove_directory(ckpt, folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            # Something foreign, or a file that somebody on NFS still reads: not ours to force.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        return True

    def _listed(self) -> list[str]:
        try:
            with self.folders.inside(CKPT, doing="list checkpoints") as ckpt:
                return self._io.list_names(ckpt)
        except StoreNotFound:
            return []

    def _has(self, ckpt: int, name: str, record: str) -> bool:
        if parse_checkpoint_name(name) is None:
            return False
        try:
            with self.folders.below(ckpt, name) as place:
                return self._io.kind(place, record) is not None
        except (FileNotFoundError, NotADirectoryError):
            return False

    def sweep_parts(self, place: int, being_written: set[str]) -> None:
        """What a killed process was writing."""
        for name in self._io.list_names(place):
            if is_left_behind(name, being_written):
                with contextlib.suppress(FileNotFoundError):
                    self._io.unlink(place, name)


def is_held_name(file: str) -> bool:
    """Whether `file` may be asked for: a data file, and not one that is still being written."""
    return is_file_name(file) and not file.startswith(PART)


def checked(name: str) -> str:
    if parse_checkpoint_name(name) is None:
        raise StoreNotFound(f"{name!r} is not the name of a checkpoint")
    return name
