"""Checkpoints in a directory of a local or shared file system.

Immutable data first, each file and each directory made durable in turn, one sealed manifest last. Nothing
is overwritten, no name is used twice, and no link or foreign file below the root is ever touched.
Reading writes nothing and takes no lock; writing needs `claim()` first.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Self

from holdfast.clock import Clock, SystemClock
from holdfast.errors import CorruptCheckpoint, InternalError, StoreError, StoreFull, StoreNotFound
from holdfast.format.manifest import FileRecord, utc_text
from holdfast.format.names import is_file_name, parse_checkpoint_name
from holdfast.format.sealed import MAX_SEALED_BYTES, check_seal
from holdfast.stores import claims
from holdfast.stores.base import ImageSource, StoreProperties
from holdfast.stores.copied_store import become_its_own
from holdfast.stores.durable_write import write_image, write_small
from holdfast.stores.folders import Folders
from holdfast.stores.identity import Identity, make_identity, read_identity
from holdfast.stores.io import StoreIO
from holdfast.stores.leftovers import GRACE_SECONDS, Unfinished, Watch, is_abandoned, sweep
from holdfast.stores.os_errors import store_errors
from holdfast.stores.owner import Owner, is_alive, this_process
from holdfast.stores.ownership import refuse_planted, say_open
from holdfast.stores.posix import PosixIO
from holdfast.stores.seat import WriterSeat
from holdfast.stores.small_read import read_small
from holdfast.stores.stored_file import DirectoryFile
from holdfast.units import format_bytes

CKPT, WRITERS = "ckpt", "writers"
MANIFEST, SECOND, PART, DEAD = "MANIFEST", "MANIFEST.2", "MANIFEST.part", "MANIFEST.dead"
RECORDS = frozenset({MANIFEST, SECOND, PART, DEAD})
SHARED_DISK = StoreProperties(
    survives_process=True, survives_node=True, survives_job=True, exclusive_create=True
)


class DirectoryStore:
    """Satisfies Store.

    >>> store = DirectoryStore("runs/resnet50")
    >>> epoch = store.claim()      # only to write; raises RunInUse while another process does
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        io: StoreIO | None = None,
        clock: Clock | None = None,
        properties: StoreProperties = SHARED_DISK,
        uuid: str | None = None,
        spare_bytes: int = 16 << 20,
        grace_seconds: float = GRACE_SECONDS,
        threads: int = 3,
    ) -> None:
        self.where = os.path.abspath(os.fspath(path))
        refuse_planted(self.where)
        self.properties = properties
        self._io: StoreIO = io if io is not None else PosixIO()
        self._clock = clock if clock is not None else SystemClock()
        self._wanted_uuid = uuid
        self._known: Identity | None = None
        self._spare_bytes = spare_bytes
        self._grace_seconds = grace_seconds
        self._threads = threads
        self._folders = Folders(self._io, self.where)
        self._seat = WriterSeat(self._io, self.where)
        self._in_progress: set[str] = set()
        self._watch = Watch()

    # ---- who writes here

    @property
    def uuid(self) -> str:
        return self._identity.uuid

    @property
    def ancestors(self) -> tuple[str, ...]:
        """The uuids of the stores that this one is a copy of: what was copied with it is its own as well."""
        return self._identity.ancestors

    @property
    def _identity(self) -> Identity:
        if self._known is None:
            with self._folders.inside(doing="read the identity") as root:
                self._known = read_identity(self._io, root, self.where)
        return self._known

    @property
    def writer_epoch(self) -> int:
        return self._seat.epoch

    def claim(self, *, at_least: int = 1, take_over: bool = False, launch: str | None = None) -> int:
        """Become the writer and return the writer epoch, higher than any before.

        Raises RunInUse while another process writes here. `take_over` skips that courtesy: the other one
        is fenced off and cannot commit any more. So does a `launch` that is the other one's too: it is left
        of an earlier generation of the same job.
        """
        if self._seat.is_mine:
            return self._seat.epoch
        # A child's copy of its parent's seat is dropped, not released: the parent still sits on it.
        self._seat = WriterSeat(self._io, self.where)
        with store_errors("claim", self.where), self._folders.root(create=True) as root:
            # Again: somebody may have made it since.
            refuse_planted(self.where)
            say_open(self.where)
            me = this_process(utc_text(self._clock.wall()))
            if claims.is_earlier_generation(self._seat.newest(root, WRITERS), me, launch):
                take_over = True
            locked = self._seat.lock(root, WRITERS, take_over=take_over)
            try:
                epoch = self._sit_down(root, me, at_least, launch, check_owner=not locked and not take_over)
            except BaseException:
                self._seat.release()
                raise
        # Now, and not behind the next commit: on a disk that they fill there would be none.
        self._sweep()
        return epoch

    def _sweep(self) -> None:
        """What dead writers left goes, as far as that is possible: too much litter hurts only where it fills
        the disk, and there the next save says so."""
        if not self._seat.is_guest:
            with contextlib.suppress(StoreError, InternalError):
                sweep(self)

    def join(self, writer_epoch: int) -> None:
        """Write beside the process that claimed `writer_epoch`: another rank of the same job.

        Takes no lock and no number of its own. Raises Fenced if somebody has taken over since.
        """
        self.release()
        self._seat = WriterSeat(self._io, self.where)
        with self._folders.inside(WRITERS, doing="join the writer") as writers:
            self._seat.join(writers, writer_epoch)

    def _sit_down(self, root: int, me: Owner, at_least: int, launch: str | None, *, check_owner: bool) -> int:
        for name in (CKPT, WRITERS):
            if self._io.kind(root, name) is None:
                with contextlib.suppress(FileExistsError):
                    self._io.make_directory(root, name)
        make_identity(self._io, root, self._wanted_uuid)
        with self._folders.below(root, CKPT) as ckpt, self._folders.below(root, WRITERS) as writers:
            become_its_own(self._io, root, self.where, claims.newest_claim(self._io, writers))
            # Always: whoever made these may have been killed before it made them durable.
            self._io.fsync_directory(root)
            self._known = read_identity(self._io, root, self.where)
            if check_owner:
                claims.refuse_living_owner(self._io, writers, me, self.where)
            # Names count too: a lost claim must not bring back an epoch that names already bear.
            names = map(parse_checkpoint_name, self._io.list_names(ckpt))
            claimed = claims.claimed_epochs(self._io, writers)
            used = claims.without_jumps([*claimed, *(name.writer_epoch for name in names if name)])
            return self._seat.take(
                writers, me, at_least=max(at_least, used[-1] + 1 if used else 1), launch=launch
            )

    def release(self) -> None:
        """Give the writer's seat back. Committed checkpoints need no closing."""
        if self._seat.is_mine:
            self._seat.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    # ---- writing

    def begin(self, name: str, need_bytes: int) -> None:
        self._require_ours(name)
        with self._folders.inside(doing="begin a checkpoint") as root:
            self._require_unfenced(root)
            free = self._io.free_bytes(root)
            if free < need_bytes + self._spare_bytes:
                self._sweep()
                free = self._io.free_bytes(root)
            if free < need_bytes + self._spare_bytes:
                raise StoreFull(
                    f"cannot begin {name} in {self.where}: it needs {format_bytes(need_bytes)}"
                    f" and {format_bytes(free)} are free",
                    hint="free space or keep fewer checkpoints",
                )
            with self._folders.below(root, CKPT) as ckpt:
                self._in_progress.add(name)
                try:
                    self._io.make_directory(ckpt, name)
                    self._io.fsync_directory(ckpt)
                except BaseException:
                    # Whatever it left is nobody's work any more: the next sweep takes it.
                    self._in_progress.discard(name)
                    raise

    def write(self, name: str, source: ImageSource) -> FileRecord:
        self._require_ours(name)
        if not is_file_name(source.name):
            raise InternalError(f"{source.name!r} may not name a file of a checkpoint")
        try:
            with self._folders.inside(CKPT, name, doing=f"write {source.name}") as place:
                return write_image(self._io, place, source, threads=self._threads)
        except StoreFull:
            # A quota, or somebody else took the room. The next save finds what can be given back.
            self._sweep()
            raise

    def publish(self, name: str, manifest: bytes) -> None:
        self._require_ours(name)
        check_seal(manifest)
        with self._folders.inside(doing="commit") as root, self._folders.below(root, CKPT) as ckpt:
            with self._folders.below(ckpt, name) as place:
                self._io.fsync_directory(place)
                write_small(self._io, place, SECOND, manifest)
                write_small(self._io, place, PART, manifest)
                self._require_unfenced(root)
                self._rename_manifest(place, manifest)
                self._io.fsync_directory(place)
        self._in_progress.discard(name)

    def _rename_manifest(self, place: int, manifest: bytes) -> None:
        try:
            self._io.rename(place, PART, MANIFEST)
        except (FileNotFoundError, FileExistsError):
            # A network file system may repeat a call that had succeeded and report the second failure.
            if self._io.kind(place, MANIFEST) != "file":
                raise
            if read_small(self._io, place, MANIFEST, MAX_SEALED_BYTES) != manifest:
                raise

    def abandon(self, name: str) -> None:
        self._require_ours(name)
        self._in_progress.discard(name)
        with self._folders.inside(CKPT, doing="abandon") as ckpt:
            with self._folders.below(ckpt, name) as place:
                names = self._io.list_names(place)
                if MANIFEST in names and DEAD not in names:
                    raise InternalError(f"{name} in {self.where} is committed and cannot be abandoned")
                emptied = self._remove_our_files(place, names)
            if emptied:
                self._remove_if_empty(ckpt, name)

    def _remove_if_empty(self, ckpt: int, name: str) -> None:
        try:
            self._io.remove_directory(ckpt, name)
        except OSError as error:
            # NFS keeps a file that somebody still reads, under a name of its own: gone at the next sweep.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def retire(self, name: str) -> None:
        self._require_ours(name)
        with self._folders.inside(doing="retire") as root:
            self._require_unfenced(root)
            with self._folders.below(root, CKPT) as ckpt, self._folders.below(ckpt, name) as place:
                # Uncommit before the first byte goes: a crash in between must not leave a manifest that
                # vouches for missing data.
                self._io.rename(place, MANIFEST, DEAD)
                self._io.fsync_directory(place)
        self.abandon(name)

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

    # ---- reading

    def names(self) -> list[str]:
        return [name for name, inside in self._listing() if _is_committed(inside)]

    def leftovers(self) -> list[str]:
        """Unfinished places whose writer cannot come back, for `abandon`. Only the writer may ask."""
        # Before the listing and after it: what another thread begins or commits meanwhile is nobody's litter.
        in_progress = frozenset(self._in_progress)
        places = [
            self._look_unfinished(name, inside)
            for name, inside in self._listing()
            if not _is_committed(inside)
        ]
        unchanged = self._watch.unchanged_seconds(places, self._clock.monotonic())
        return [
            str(place.name)
            for place in places
            if is_abandoned(
                place,
                my_epoch=self._seat.epoch,
                in_progress=in_progress | self._in_progress,
                unchanged_seconds=unchanged[place.name],
                grace_seconds=self._grace_seconds,
            )
        ]

    def _look_unfinished(self, text: str, inside: list[str]) -> Unfinished:
        name = parse_checkpoint_name(text)
        assert name is not None
        with self._folders.inside(WRITERS, doing="read claims") as writers:
            owner = claims.read_claim(self._io, writers, name.writer_epoch).owner
        alive = is_alive(owner, this_process("")) if owner else None
        return Unfinished(name, tuple(sorted(inside)), DEAD in inside, alive)

    def _listing(self) -> list[tuple[str, list[str]]]:
        """Every place of ours with the names inside it. A store that is not there yet has none."""
        found = []
        with store_errors("list checkpoints", self.where), contextlib.ExitStack() as opened:
            try:
                root = opened.enter_context(self._folders.root())
                ckpt = opened.enter_context(self._folders.below(root, CKPT))
            except FileNotFoundError:
                return []
            for name in self._io.list_names(ckpt):
                if parse_checkpoint_name(name) and self._io.kind(ckpt, name) == "directory":
                    try:
                        with self._folders.below(ckpt, name) as place:
                            found.append((name, self._io.list_names(place)))
                    except FileNotFoundError:
                        # Pruned since it was listed; but a name still there must not be passed over.
                        if self._io.kind(ckpt, name) is not None:
                            raise
        return found

    def manifest(self, name: str) -> bytes:
        if parse_checkpoint_name(name) is None:
            raise StoreNotFound(f"{name!r} is not the name of a checkpoint")
        with self._folders.inside(CKPT, name, doing=f"read {MANIFEST} of {name}") as place:
            try:
                return self._read_sealed(place, MANIFEST)
            except FileNotFoundError:
                # Then the second copy means nothing: it exists before the commit and for a moment after
                # the tombstone.
                raise
            except (CorruptCheckpoint, OSError) as first:
                # Any other error of the second copy proves nothing: it may be whole.
                with contextlib.suppress(CorruptCheckpoint, FileNotFoundError):
                    return self._read_sealed(place, SECOND)
                if isinstance(first, OSError):
                    raise
                raise CorruptCheckpoint(f"{MANIFEST} of {name} in {self.where}: {first.message}") from first

    def _read_sealed(self, place: int, record: str) -> bytes:
        data = read_small(self._io, place, record, MAX_SEALED_BYTES)
        check_seal(data)
        return data

    def open(self, name: str, file: str) -> DirectoryFile:
        if parse_checkpoint_name(name) is None or not is_file_name(file):
            raise StoreNotFound(f"{name!r}/{file!r} is not a file of a checkpoint")
        with self._folders.inside(CKPT, name, doing=f"open {file} of {name}") as place:
            return DirectoryFile(self._io, place, file, os.path.join(self.where, CKPT, name, file))

    # ---- how

    def _require_unfenced(self, root: int) -> None:
        with self._folders.below(root, WRITERS) as writers:
            self._seat.require_unfenced(writers)

    def _require_ours(self, name: str) -> None:
        _ = self._seat.epoch
        if parse_checkpoint_name(name) is None:
            raise InternalError(f"{name!r} is not the name of a checkpoint")


def _is_committed(inside: list[str]) -> bool:
    return MANIFEST in inside and DEAD not in inside
