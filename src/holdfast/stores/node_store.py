"""The store of one node: its own ranks' files, and beside them what it keeps for other nodes.

The same folder that a DirectoryStore writes, but files may be added to it after the commit, by whoever runs
on the node: partner copies and parity, and after a loss the files of the node it replaces. No seat of a
writer is needed: what a file must contain, the manifest says, so two can only write the same bytes.

A place that this node does not have yet is filled beside its name and appears at once with its manifest.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import replace as changed

from holdfast.errors import CorruptCheckpoint, InternalError, StoreError, StoreFull, StoreNotFound
from holdfast.format.manifest import FileRecord, parse_manifest
from holdfast.format.names import parse_checkpoint_name
from holdfast.format.sealed import check_seal
from holdfast.stores.base import ImageSource, StoreProperties
from holdfast.stores.directory import CKPT, DEAD, MANIFEST, SECOND, DirectoryStore
from holdfast.stores.durable_write import write_image, write_small
from holdfast.stores.io import StoreIO
from holdfast.stores.node_parts import new_part
from holdfast.stores.node_places import INCOMING, NodePlaces, checked, is_held_name
from holdfast.stores.posix import PosixIO
from holdfast.stores.stored_file import DirectoryFile
from holdfast.units import format_bytes

NODE_DISK = StoreProperties(
    survives_process=True, survives_node=False, survives_job=False, exclusive_create=True
)


class NodeStore:
    """Satisfies Store and NodeSide. The processes of one node write here, each its own files, and one of them
    settles; any number may read. With `makes_room`, what was left unsettled by earlier attempts goes where
    room is lacking.

    >>> node = NodeStore("/local/nvme/run")
    >>> node.put(name, source, expect=record)        # into a committed place, or into one that is to be
    >>> node.settle(name, manifest)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        io: StoreIO | None = None,
        properties: StoreProperties = NODE_DISK,
        uuid: str | None = None,
        spare_bytes: int = 16 << 20,
        threads: int = 2,
        makes_room: bool = False,
    ) -> None:
        self._io: StoreIO = io if io is not None else PosixIO()
        self._committed = DirectoryStore(path, io=self._io, properties=properties)
        self.where = self._committed.where
        self.properties = properties
        self._wanted_uuid = uuid
        self._spare_bytes = spare_bytes
        self._threads = threads
        self._makes_room = makes_room
        self._places = NodePlaces(self._io, self.where)
        self._being_written: set[str] = set()
        self._in_progress: set[str] = set()
        self._last_listed: tuple[str, dict[str, FileRecord]] = ("", {})

    @property
    def uuid(self) -> str:
        return self._wanted_uuid or self._committed.uuid

    # ---- reading

    def names(self) -> list[str]:
        return self._committed.names()

    def manifest(self, name: str) -> bytes:
        return self._committed.manifest(name)

    def held(self, name: str) -> dict[str, int]:
        with self._places.inside(name, f"list the files of {name}") as place:
            return {
                file: size
                for file in self._io.list_names(place)
                if is_held_name(file) and (size := self._size(place, file)) is not None
            }

    def open(self, name: str, file: str) -> DirectoryFile:
        if not is_held_name(file):
            raise StoreNotFound(f"{name!r}/{file!r} is not a file of a checkpoint")
        with self._places.inside(name, f"open {file} of {name}") as place:
            return DirectoryFile(self._io, place, file, os.path.join(self.where, CKPT, name, file))

    @contextlib.contextmanager
    def descriptor(self, name: str, file: str) -> Iterator[int]:
        """The file to send from, through the page cache."""
        if not is_held_name(file):
            raise StoreNotFound(f"{name!r}/{file!r} is not a file of a checkpoint")
        with self._places.inside(name, f"open {file} of {name}") as place:
            handle = self._io.open_read(place, file)
        try:
            yield handle
        finally:
            self._io.close(handle)

    # ---- adding

    def put(
        self, name: str, source: ImageSource, *, expect: FileRecord | None = None, replace: bool = False
    ) -> FileRecord:
        if not is_held_name(source.name):
            raise InternalError(f"{source.name!r} may not name a file of a checkpoint")
        # Whoever asks: what a committed manifest lists can only become what it says.
        expect = self._listed(name).get(source.name, expect)
        # What was begun here and is gone was taken away, with the files that were in it.
        if name not in self._in_progress and not self._places.is_there(name):
            self._places.make_incoming(name, self._wanted_uuid)
        with self._places.inside(name, f"write {source.name} of {name}") as place:
            self._require_room(place, source.size, name)
            self._places.sweep_parts(place, self._being_written)
            part = new_part()
            self._being_written.add(part)
            try:
                record = self._write_part(place, part, source, expect)
                self._give_name(place, part, source.name, replace)
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

    def _give_name(self, place: int, part: str, file: str, replace: bool) -> None:
        if self._io.kind(place, DEAD) is not None:
            raise FileNotFoundError(errno.ENOENT, "the checkpoint was retired meanwhile", file)
        if replace and self._io.kind(place, file) is not None:
            # Never over it: for a moment the damaged file is missing, which is what damaged means anyway.
            aside = new_part()
            self._io.rename(place, file, aside)
            self._io.rename(place, part, file)
            self._io.unlink(place, aside)
        else:
            self._io.rename(place, part, file)

    def settle(self, name: str, manifest: bytes) -> None:
        check_seal(manifest)
        try:
            committed = self.manifest(name)
        except CorruptCheckpoint:
            self._mend_manifest(name, manifest)
            return
        except StoreNotFound:
            committed = b""
        if committed == manifest:
            return
        if committed:
            raise StoreError(
                f"{name} in {self.where} has another manifest", hint="two runs may share this folder"
            )
        if not self._places.is_there(name):
            self._places.make_incoming(name, self._wanted_uuid)
        with self._places.folders.inside(CKPT, doing=f"commit {name}") as ckpt:
            with self._places.folders.below(ckpt, name + INCOMING) as place:
                for record in (SECOND, MANIFEST):
                    # Left by one who was killed here; nobody has seen it.
                    with contextlib.suppress(FileNotFoundError):
                        self._io.unlink(place, record)
                    write_small(self._io, place, record, manifest)
                self._places.sweep_parts(place, self._being_written)
                self._io.fsync_directory(place)
            try:
                self._io.rename(ckpt, name + INCOMING, name)
            except (FileNotFoundError, FileExistsError):
                # Another process of this node may have been faster; what counts is that it is the same.
                if self.manifest(name) != manifest:
                    raise
            self._io.fsync_directory(ckpt)

    # ---- as a Store

    def begin(self, name: str, need_bytes: int) -> None:
        if self._places.is_there(name):
            raise StoreError(f"{name} is in {self.where} already", hint="names are never reused")
        self._in_progress.add(name)
        try:
            self._places.make_incoming(name, self._wanted_uuid)
            with self._places.inside(name, f"begin {name}") as place:
                self._require_room(place, need_bytes, name)
        except BaseException:
            self._in_progress.discard(name)
            raise

    def write(self, name: str, source: ImageSource) -> FileRecord:
        return self.put(name, source)

    def publish(self, name: str, manifest: bytes) -> None:
        held = self.held(name)
        for record in parse_manifest(manifest).files:
            if held.get(record.name) != record.size:
                raise StoreError(
                    f"{record.name} of {name} is not in {self.where} any more",
                    hint="somebody removes files there while they are written",
                )
        self.settle(name, manifest)
        self._in_progress.discard(name)

    def abandon(self, name: str) -> None:
        """Remove a place that was never settled, or one whose retirement was not finished."""
        self._in_progress.discard(name)
        with contextlib.suppress(StoreNotFound):
            if not self._places.take_away(name) and self._places.is_committed(name):
                raise InternalError(f"{name} in {self.where} is committed and cannot be abandoned")
            self._places.remove_retired(name)

    def unsettled(self) -> list[str]:
        """Places that were begun and never settled, or are being filled: the caller knows which."""
        return self._places.unsettled()

    def leftovers(self) -> list[str]:
        """Of those, what this process does not fill; and what was not retired to its end."""
        # Before the listing and after it: what another thread begins or settles meanwhile is nobody's litter.
        in_progress = frozenset(self._in_progress)
        places = [*self._places.unsettled(), *self._places.retired()]
        return [name for name in places if name not in in_progress | self._in_progress]

    def retire(self, name: str) -> None:
        with self._places.folders.inside(CKPT, checked(name), doing=f"retire {name}") as place:
            # Uncommit before the first byte goes.
            self._io.rename(place, MANIFEST, DEAD)
            self._io.fsync_directory(place)
        self._places.remove_retired(name)

    # ---- how

    def _listed(self, name: str) -> dict[str, FileRecord]:
        """The files of a committed place, as its manifest has them. Kept for one: files come in a row."""
        if self._last_listed[0] != name:
            try:
                files = parse_manifest(self.manifest(name)).files
            except (StoreNotFound, CorruptCheckpoint):
                return {}
            self._last_listed = (name, {record.name: record for record in files})
        return self._last_listed[1]

    def _mend_manifest(self, name: str, manifest: bytes) -> None:
        """Both copies are damaged. Only the second is written anew: it is read where the first is no good.
        To replace the first would mean a moment in which nothing is committed here."""
        with self._places.inside(name, f"mend the manifest of {name}") as place:
            part = new_part()
            write_small(self._io, place, part, manifest)
            if self._io.kind(place, SECOND) is not None:
                self._io.unlink(place, SECOND)
            self._io.rename(place, part, SECOND)
            self._io.fsync_directory(place)

    def _require_room(self, directory: int, size: int, name: str) -> None:
        free = self._io.free_bytes(directory)
        if free < size + self._spare_bytes and self._makes_room:
            self._sweep_before(name)
            free = self._io.free_bytes(directory)
        if free < size + self._spare_bytes:
            raise StoreFull(
                f"{name} needs {format_bytes(size)} more in {self.where} and {format_bytes(free)} are free",
                hint="free space, keep fewer checkpoints, or protect them with less",
            )

    def _sweep_before(self, name: str) -> None:
        """What earlier attempts of the job began here and never settled: nobody will."""
        mine = parse_checkpoint_name(name)
        with contextlib.suppress(StoreError, InternalError):
            for left in self.unsettled():
                other = parse_checkpoint_name(left)
                if mine and other and other.writer_epoch < mine.writer_epoch:
                    self.abandon(left)

    def _size(self, place: int, file: str) -> int | None:
        try:
            handle = self._io.open_read(place, file)
        except OSError:
            return None
        try:
            return self._io.size(handle)
        finally:
            self._io.close(handle)


class _Named:
    """The same bytes under another name."""

    def __init__(self, name: str, source: ImageSource) -> None:
        self.name, self.size, self.concurrent = name, source.size, source.concurrent
        self.view = source.view
