"""A place in a folder of a local or shared file system. Every call to it passes through StoreIO.

Immutable data first, each file and each directory made durable in turn, one sealed manifest last. Nothing
is overwritten, no name is used twice, and no link or foreign file below the root is ever touched.

A checkpoint that is saved bears its name from the start, and is committed by the name of its manifest. A copy
is filled beside its name and appears at once, with its manifest: a sweeper leaves it alone, and whoever comes
next can go on with it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace as changed

from holdfast.errors import CorruptCheckpoint, InternalError, StoreNotFound
from holdfast.format.manifest import FileRecord
from holdfast.format.names import (
    DEAD,
    MANIFEST,
    PART,
    RECORDS,
    SECOND,
    is_committed,
    is_file_name,
    is_held_name,
    parse_checkpoint_name,
)
from holdfast.format.sealed import MAX_SEALED_BYTES
from holdfast.stores.base import ImageSource
from holdfast.stores.durable_write import write_image, write_small
from holdfast.stores.folder_records import FolderRecords
from holdfast.stores.io import StoreIO
from holdfast.stores.os_errors import store_errors
from holdfast.stores.parts import is_left_behind, new_part
from holdfast.stores.place import CKPT, State
from holdfast.stores.stored_file import DirectoryFile, read_small

# What is being filled, and what is being taken away: it loses its name before its files.
INCOMING, LEAVING = ".incoming", ".leaving"


class FolderPlace(FolderRecords):
    """Satisfies Place."""

    def __init__(self, path: str | os.PathLike[str], io: StoreIO | None = None, *, threads: int = 3) -> None:
        super().__init__(path, io)
        self._threads = threads
        # The folders of checkpoints that were begun here, open until they are committed or removed.
        self._begun: dict[str, int] = {}
        self._being_written: set[str] = set()

    def let_go(self) -> None:
        for name in list(self._begun):
            self._leave(name)
        super().let_go()

    def _leave(self, name: str) -> None:
        if (begun := self._begun.pop(name, None)) is not None:
            with contextlib.suppress(OSError):
                self._io.close(begun)

    @contextlib.contextmanager
    def _at(self, name: str, doing: str) -> Iterator[int]:
        """The folder of a checkpoint, or beside its name the one that is being filled."""
        if (begun := self._begun.get(name)) is not None:
            with store_errors(doing, self.where):
                yield begun
            return
        with self._folders.inside(CKPT, doing=doing) as ckpt, contextlib.ExitStack() as opened:
            try:
                place = opened.enter_context(self._folders.below(ckpt, name))
            except FileNotFoundError:
                place = opened.enter_context(self._folders.below(ckpt, name + INCOMING))
            yield place

    # ---- looking

    def listing(self) -> dict[str, list[str]]:
        """A store that is not there yet has none."""
        found: dict[str, list[str]] = {}
        with store_errors("list checkpoints", self.where), contextlib.ExitStack() as opened:
            try:
                ckpt = opened.enter_context(self._folders.inside(CKPT, doing="list checkpoints"))
            except StoreNotFound as error:
                # Something else of that name is not the same as nothing.
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                return {}
            for name in self._io.list_names(ckpt):
                if parse_checkpoint_name(name) and self._io.kind(ckpt, name) == "directory":
                    try:
                        with self._folders.below(ckpt, name) as place:
                            found[name] = self._io.list_names(place)
                    except FileNotFoundError:
                        # Pruned since it was listed; but a name still there must not be passed over.
                        if self._io.kind(ckpt, name) is not None:
                            raise
        return found

    def copies(self) -> list[str]:
        try:
            folders = self.entries(CKPT)
        except StoreNotFound:
            return []
        names = {
            folder.removesuffix(INCOMING).removesuffix(LEAVING)
            for folder in folders
            if folder.endswith((INCOMING, LEAVING))
        }
        return sorted(name for name in names if parse_checkpoint_name(name))

    def state(self, name: str) -> State | None:
        try:
            with self._folders.inside(CKPT, doing=f"look for {name}") as ckpt:
                try:
                    with self._folders.below(ckpt, name) as place:
                        return "committed" if is_committed(self._io.list_names(place)) else "begun"
                except FileNotFoundError:
                    return "copy" if self._io.kind(ckpt, name + INCOMING) is not None else None
        except StoreNotFound:
            return None

    def held(self, name: str) -> dict[str, int]:
        with self._at(name, f"list the files of {name}") as place:
            return {
                file: size
                for file in self._io.list_names(place)
                if is_held_name(file) and (size := self._size(place, file)) is not None
            }

    def _size(self, place: int, file: str) -> int | None:
        try:
            handle = self._io.open_read(place, file)
        except OSError:
            return None
        try:
            return self._io.size(handle)
        finally:
            self._io.close(handle)

    def open(self, name: str, file: str) -> DirectoryFile:
        with self._at(name, f"open {file} of {name}") as place:
            return DirectoryFile(self._io, place, file, os.path.join(self.where, CKPT, name, file))

    @contextlib.contextmanager
    def descriptor(self, name: str, file: str) -> Iterator[int | None]:
        with self._at(name, f"open {file} of {name}") as place:
            handle = self._io.open_read(place, file)
        try:
            yield handle
        finally:
            self._io.close(handle)

    def free_bytes(self) -> int:
        with self._folders.inside(doing="look for room") as root:
            return self._io.free_bytes(root)

    # ---- writing

    def begin(self, name: str) -> None:
        with self._folders.inside(CKPT, doing="begin a checkpoint") as ckpt:
            self._io.make_directory(ckpt, name)
            self._io.fsync_directory(ckpt)
            self._begun[name] = self._io.open_directory(ckpt, name)

    def begin_copy(self, name: str) -> None:
        with self._folders.inside(CKPT, doing=f"begin {name}") as ckpt:
            with contextlib.suppress(FileExistsError):
                self._io.make_directory(ckpt, name + INCOMING)
            self._io.fsync_directory(ckpt)

    def write(self, name: str, source: ImageSource) -> FileRecord:
        with self._at(name, f"write {source.name}") as place:
            return write_image(self._io, place, source, threads=self._threads)

    def add(
        self, name: str, source: ImageSource, expect: FileRecord | None, *, replace: bool = False
    ) -> FileRecord:
        with self._at(name, f"write {source.name} of {name}") as place:
            self._sweep_parts(place)
            part = new_part()
            self._being_written.add(part)
            try:
                record = self._write_part(place, part, source, expect)
                if self._io.kind(place, DEAD) is not None:
                    raise FileNotFoundError(errno.ENOENT, "the checkpoint was retired meanwhile", source.name)
                (self._io.replace if replace else self._io.rename)(place, part, source.name)
            except BaseException:
                with contextlib.suppress(OSError):
                    self._io.unlink(place, part)
                raise
            finally:
                self._being_written.discard(part)
            self._io.fsync_directory(place)
            return record

    def _write_part(
        self, place: int, part: str, source: ImageSource, expect: FileRecord | None
    ) -> FileRecord:
        written = write_image(self._io, place, _Named(part, source), threads=self._threads)
        record = changed(written, name=source.name, role=expect.role if expect else "")
        if expect is not None and record != expect:
            raise CorruptCheckpoint(
                f"{source.name} came to {self.where} with other bytes than its manifest says"
            )
        return record

    def _sweep_parts(self, place: int) -> None:
        """What a killed process was writing."""
        for name in self._io.list_names(place):
            if is_left_behind(name, self._being_written):
                with contextlib.suppress(FileNotFoundError):
                    self._io.unlink(place, name)

    def commit(self, name: str, manifest: bytes, check: Callable[[], None]) -> None:
        with contextlib.ExitStack() as opened:
            if (place := self._begun.get(name)) is None:
                ckpt = opened.enter_context(self._folders.inside(CKPT, doing="commit"))
                if self._io.kind(ckpt, name) is None:
                    self._commit_copy(ckpt, name, manifest, check)
                    return
                place = opened.enter_context(self._folders.below(ckpt, name))
            with store_errors("commit", self.where):
                self._commit_in_place(place, manifest, check)
        self._leave(name)

    def _commit_in_place(self, place: int, manifest: bytes, check: Callable[[], None]) -> None:
        self._io.fsync_directory(place)
        write_small(self._io, place, SECOND, manifest)
        write_small(self._io, place, PART, manifest)
        check()
        try:
            self._io.rename(place, PART, MANIFEST)
        except (FileNotFoundError, FileExistsError):
            # A network file system may repeat a call that had succeeded and report the second failure.
            if self._io.kind(place, MANIFEST) != "file":
                raise
            if read_small(self._io, place, MANIFEST, MAX_SEALED_BYTES) != manifest:
                raise
        self._io.fsync_directory(place)

    def _commit_copy(self, ckpt: int, name: str, manifest: bytes, check: Callable[[], None]) -> None:
        with self._folders.below(ckpt, name + INCOMING) as place:
            for record in (SECOND, MANIFEST):
                # Left by one who was killed here; nobody has seen it.
                with contextlib.suppress(FileNotFoundError):
                    self._io.unlink(place, record)
                write_small(self._io, place, record, manifest)
            self._sweep_parts(place)
            self._io.fsync_directory(place)
        check()
        try:
            self._io.rename(ckpt, name + INCOMING, name)
        except (FileNotFoundError, FileExistsError):
            # Another process of this node may have been faster; what counts is that it is the same.
            if self.read(f"{CKPT}/{name}/{MANIFEST}", MAX_SEALED_BYTES) != manifest:
                raise
        self._io.fsync_directory(ckpt)

    # ---- removing

    def bury(self, name: str) -> None:
        with self._folders.inside(CKPT, name, doing="retire") as place:
            self._io.rename(place, MANIFEST, DEAD)

    def clear(self, name: str) -> None:
        self._leave(name)
        with self._folders.inside(CKPT, doing="remove") as ckpt:
            # Left by one who was killed here.
            took = self._remove(ckpt, name + LEAVING)
            # Whoever still fills it cannot commit it any more; what was committed a moment ago has its own
            # name and stays.
            with contextlib.suppress(FileNotFoundError):
                self._io.rename(ckpt, name + INCOMING, name + LEAVING)
                took |= self._remove(ckpt, name + LEAVING)
            try:
                self._remove(ckpt, name)
            except InternalError:
                if not took:
                    raise

    def _remove(self, ckpt: int, folder: str) -> bool:
        """False if there is none."""
        with contextlib.ExitStack() as opened:
            try:
                place = opened.enter_context(self._folders.below(ckpt, folder))
            except FileNotFoundError:
                return False
            names = self._io.list_names(place)
            if is_committed(names) and not folder.endswith(LEAVING):
                raise InternalError(f"{folder} in {self.where} is committed and cannot be abandoned")
            if DEAD in names:
                # Uncommitted for good before the first byte goes: a power cut must not leave a manifest that
                # vouches for missing data. Here and not in `bury`: who made the tombstone may have died
                # before it was durable, and this be its heir.
                self._io.fsync_directory(place)
            emptied = self._remove_our_files(place, names)
        if emptied:
            self._remove_if_empty(ckpt, folder)
        return True

    def _remove_our_files(self, place: int, names: list[str]) -> bool:
        """Whether nothing is left. The tombstone goes last, and stays while anything foreign does.

        What is about to become the manifest goes first: if it has become it since we looked, it is not there,
        nothing else is touched, and the checkpoint is committed and whole."""
        foreign = False
        for name in sorted(set(names) - {DEAD}, key=lambda name: (name != PART, name)):
            if (name in RECORDS or is_file_name(name)) and self._io.kind(place, name) == "file":
                self._io.unlink(place, name)
            else:
                foreign = True
        if DEAD in names and not foreign:
            self._io.unlink(place, DEAD)
        return not foreign

    def _remove_if_empty(self, ckpt: int, folder: str) -> None:
        try:
            self._io.remove_directory(ckpt, folder)
        except OSError as error:
            # NFS keeps a file that somebody still reads, under a name of its own: gone at the next sweep.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


class _Named:
    """The same bytes under another name."""

    def __init__(self, name: str, source: ImageSource) -> None:
        self.name, self.size, self.concurrent = name, source.size, source.concurrent
        self.view = source.view
