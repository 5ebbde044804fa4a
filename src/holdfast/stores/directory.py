"""Checkpoints in a directory of a local or shared file system.

Immutable data first, each file and each directory made durable in turn, one sealed manifest last. Nothing
is overwritten, no name is used twice, and no link or foreign file below the root is ever touched.
Reading writes nothing and takes no lock; writing needs `claim()` first.
"""

from __future__ import annotations

import contextlib
import os
import uuid as uuids
from collections.abc import Iterator
from typing import Self

from holdfast.clock import Clock, SystemClock
from holdfast.errors import CorruptCheckpoint, InternalError, SetupError, StoreError, StoreFull, StoreNotFound
from holdfast.format.manifest import FileRecord, utc_text
from holdfast.format.names import is_file_name, parse_checkpoint_name
from holdfast.format.sealed import MAX_SEALED_BYTES, check_seal, seal, unseal
from holdfast.stores import claims
from holdfast.stores.base import ImageSource, StoreProperties
from holdfast.stores.durable_write import write_image, write_small
from holdfast.stores.io import StoreIO
from holdfast.stores.os_errors import store_errors
from holdfast.stores.owner import Owner, this_process
from holdfast.stores.posix import PosixIO
from holdfast.stores.small_read import read_small
from holdfast.stores.stored_file import DirectoryFile
from holdfast.units import format_bytes

CKPT, WRITERS, LOCK, STORE = "ckpt", "writers", "LOCK", "STORE.json"
MANIFEST, SECOND, PART, DEAD = "MANIFEST", "MANIFEST.2", "MANIFEST.part", "MANIFEST.dead"
RECORDS = frozenset({MANIFEST, SECOND, PART, DEAD})
SHARED_DISK = StoreProperties(
    survives_process=True, survives_node=True, survives_job=True, exclusive_create=True
)
MAX_STORE_RECORD_BYTES = 64 << 10


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
        threads: int = 2,
    ) -> None:
        self.where = os.path.abspath(os.fspath(path))
        self.properties = properties
        self._io: StoreIO = io if io is not None else PosixIO()
        self._clock = clock if clock is not None else SystemClock()
        self._wanted_uuid = uuid
        self._uuid: str | None = None
        self._spare_bytes = spare_bytes
        self._threads = threads
        self._claim: claims.Claim | None = None
        self._lock: int | None = None

    # ---- who writes here

    @property
    def uuid(self) -> str:
        """This store's identity, as its manifests carry it."""
        if self._uuid is None:
            with self._inside() as root:
                self._uuid = self._read_uuid(root)
        return self._uuid

    @property
    def writer_epoch(self) -> int:
        return self._require_claim().epoch

    def claim(self, *, at_least: int = 1, take_over: bool = False) -> int:
        """Become the writer and return the writer epoch, higher than any before.

        Raises RunInUse while another process writes here. `take_over` skips that courtesy: the other one
        is fenced off and cannot commit any more.
        """
        if self._claim is not None and self._is_mine(self._claim):
            return self._claim.epoch
        me = this_process(utc_text(self._clock.wall()))
        with self._errors("claim"):
            root = self._io.open_root(self.where, create=True)
        with self._closing(root), self._errors("claim"):
            lock = self._take_lock(root, take_over)
            try:
                self._lay_out(root)
                with self._subdirectory(root, WRITERS) as writers:
                    if lock is None and not take_over:
                        claims.refuse_living_owner(self._io, writers, me, self.where)
                    # Names count too: a lost claim must not let an epoch come back that names already bear.
                    used = [
                        parsed.writer_epoch
                        for parsed in map(parse_checkpoint_name, self._places(root))
                        if parsed
                    ]
                    at_least = max([at_least, 1, *(epoch + 1 for epoch in used)])
                    claim = claims.take_claim(self._io, writers, me, at_least=at_least)
            except BaseException:
                if lock is not None:
                    self._io.unlock(lock)
                raise
        self._claim, self._lock = claim, lock
        return claim.epoch

    def close(self) -> None:
        """Give the writer's place back. Committed checkpoints need no closing."""
        if self._claim is not None and self._is_mine(self._claim) and self._lock is not None:
            self._io.unlock(self._lock)
        self._claim = self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- writing

    def begin(self, name: str, need_bytes: int) -> None:
        self._require_ours(name)
        with self._inside() as root:
            self._require_unfenced(root)
            free = self._io.free_bytes(root)
            if free < need_bytes + self._spare_bytes:
                raise StoreFull(
                    f"cannot begin {name} in {self.where}: it needs {format_bytes(need_bytes)}"
                    f" and {format_bytes(free)} are free",
                    hint="free space or keep fewer checkpoints",
                )
            with self._subdirectory(root, CKPT) as ckpt:
                self._io.make_directory(ckpt, name)
                self._io.fsync_directory(ckpt)

    def write(self, name: str, source: ImageSource) -> FileRecord:
        self._require_ours(name)
        if not is_file_name(source.name):
            raise InternalError(f"{source.name!r} may not name a file of a checkpoint")
        with self._inside(CKPT, name, doing=f"write {source.name}") as place:
            return write_image(self._io, place, source, threads=self._threads)

    def publish(self, name: str, manifest: bytes) -> None:
        self._require_ours(name)
        check_seal(manifest)
        with self._inside(doing="commit") as root, self._subdirectory(root, CKPT) as ckpt:
            with self._subdirectory(ckpt, name) as place:
                self._io.fsync_directory(place)
                write_small(self._io, place, SECOND, manifest)
                write_small(self._io, place, PART, manifest)
                self._require_unfenced(root)
                self._rename_manifest(place, manifest)
                self._io.fsync_directory(place)

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
        with self._inside(CKPT, doing="abandon") as ckpt:
            with self._subdirectory(ckpt, name) as place:
                names = self._io.list_names(place)
                if MANIFEST in names and DEAD not in names:
                    raise InternalError(f"{name} in {self.where} is committed and cannot be abandoned")
                emptied = self._remove_our_files(place, names)
            if emptied:
                self._io.remove_directory(ckpt, name)

    def retire(self, name: str) -> None:
        self._require_ours(name)
        with self._inside(doing="retire") as root:
            self._require_unfenced(root)
            with self._subdirectory(root, CKPT) as ckpt, self._subdirectory(ckpt, name) as place:
                # Uncommit before the first byte goes: a crash in between must not leave a manifest that
                # vouches for missing data.
                self._io.rename(place, MANIFEST, DEAD)
                self._io.fsync_directory(place)
        self.abandon(name)

    def _remove_our_files(self, place: int, names: list[str]) -> bool:
        """Whether nothing is left. The tombstone goes last, and stays while anything foreign does."""
        foreign = False
        for name in sorted(set(names) - {DEAD}):
            if (name in RECORDS or is_file_name(name)) and self._io.kind(place, name) == "file":
                self._io.unlink(place, name)
            else:
                foreign = True
        if DEAD in names and not foreign:
            self._io.unlink(place, DEAD)
        return not foreign

    # ---- reading

    def names(self) -> list[str]:
        return [name for name, committed in self._scan() if committed]

    def unfinished(self) -> list[str]:
        """Places without a commit record: being written, or left behind by a crash or a half-done retire."""
        return [name for name, committed in self._scan() if not committed]

    def _scan(self) -> list[tuple[str, bool]]:
        found = []
        with self._errors("list checkpoints"):
            try:
                root = self._io.open_root(self.where, create=False)
            except FileNotFoundError:
                return []
            with self._closing(root):
                try:
                    ckpt = self._io.open_directory(root, CKPT)
                except FileNotFoundError:
                    return []
                with self._closing(ckpt):
                    for name in self._io.list_names(ckpt):
                        if parse_checkpoint_name(name) and self._io.kind(ckpt, name) == "directory":
                            with contextlib.suppress(FileNotFoundError):  # pruned since it was listed
                                with self._subdirectory(ckpt, name) as place:
                                    inside = self._io.list_names(place)
                                    found.append((name, MANIFEST in inside and DEAD not in inside))
        return found

    def manifest(self, name: str) -> bytes:
        if parse_checkpoint_name(name) is None:
            raise StoreNotFound(f"{name!r} is not the name of a checkpoint")
        with self._inside(CKPT, name, doing=f"read {MANIFEST} of {name}") as place:
            data = read_small(self._io, place, MANIFEST, MAX_SEALED_BYTES)
            try:
                check_seal(data)
            except CorruptCheckpoint as first:
                # Only now: where MANIFEST is absent the second copy means nothing, for it exists before
                # the commit and for a moment after the tombstone.
                with contextlib.suppress(CorruptCheckpoint, FileNotFoundError):
                    second = read_small(self._io, place, SECOND, MAX_SEALED_BYTES)
                    check_seal(second)
                    return second
                raise CorruptCheckpoint(f"{MANIFEST} of {name} in {self.where}: {first.message}") from first
            return data

    def open(self, name: str, file: str) -> DirectoryFile:
        if parse_checkpoint_name(name) is None or not is_file_name(file):
            raise StoreNotFound(f"{name!r}/{file!r} is not a file of a checkpoint")
        with self._inside(CKPT, name, doing=f"open {file} of {name}") as place:
            handle = self._io.open_read(place, file, direct=True)
        return DirectoryFile(self._io, handle, os.path.join(self.where, CKPT, name, file))

    # ---- how

    def _take_lock(self, root: int, take_over: bool) -> int | None:
        try:
            return self._io.lock(root, LOCK)
        except BlockingIOError as error:
            if take_over:
                return None
            raise claims.run_in_use(self.where, self._newest_owner(root)) from error

    def _newest_owner(self, root: int) -> Owner | None:
        with contextlib.suppress(OSError), self._subdirectory(root, WRITERS) as writers:
            epochs = claims.claimed_epochs(self._io, writers)
            return claims.read_claim(self._io, writers, epochs[-1]).owner if epochs else None
        return None

    def _lay_out(self, root: int) -> None:
        for name in (CKPT, WRITERS):
            if self._io.kind(root, name) is None:
                with contextlib.suppress(FileExistsError):
                    self._io.make_directory(root, name)
        if self._io.kind(root, STORE) is None:
            record = seal({"format": 1, "uuid": self._wanted_uuid or str(uuids.uuid4())})
            part = f"{STORE}.{os.urandom(4).hex()}.part"
            write_small(self._io, root, part, record)
            try:
                self._io.rename(root, part, STORE)
            except FileExistsError:
                self._io.unlink(root, part)
        # Always: whoever made these may have been killed before it made them durable.
        self._io.fsync_directory(root)
        self._uuid = self._read_uuid(root)

    def _read_uuid(self, root: int) -> str:
        try:
            record = unseal(read_small(self._io, root, STORE, MAX_STORE_RECORD_BYTES))
        except CorruptCheckpoint as error:
            raise StoreError(
                f"{STORE} in {self.where} is damaged: {error.message}",
                hint="its checkpoints can still be read; to write, move the damaged file away",
            ) from error
        if record.get("format") != 1 or not isinstance(record.get("uuid"), str):
            raise StoreError(f"{STORE} in {self.where} was made by a newer holdfast")
        return str(record["uuid"])

    def _places(self, root: int) -> list[str]:
        with self._subdirectory(root, CKPT) as ckpt:
            return self._io.list_names(ckpt)

    def _require_unfenced(self, root: int) -> None:
        with self._subdirectory(root, WRITERS) as writers:
            claims.require_unfenced(self._io, writers, self.writer_epoch, self.where)

    def _require_claim(self) -> claims.Claim:
        if self._claim is None or not self._is_mine(self._claim):
            raise SetupError(
                f"this process is not the writer of {self.where}",
                hint="call claim() first; a forked child must not write for its parent",
            )
        return self._claim

    def _is_mine(self, claim: claims.Claim) -> bool:
        return claim.owner is not None and claim.owner.pid == os.getpid()

    def _require_ours(self, name: str) -> None:
        self._require_claim()
        if parse_checkpoint_name(name) is None:
            raise InternalError(f"{name!r} is not the name of a checkpoint")

    def _errors(self, doing: str) -> contextlib.AbstractContextManager[None]:
        return store_errors(doing, self.where)

    @contextlib.contextmanager
    def _inside(self, *path: str, doing: str = "work") -> Iterator[int]:
        """The open directory at `path` below the root, with errors translated."""
        with self._errors(doing), contextlib.ExitStack() as stack:
            directory = self._io.open_root(self.where, create=False)
            stack.enter_context(self._closing(directory))
            for name in path:
                directory = stack.enter_context(self._subdirectory(directory, name))
            yield directory

    @contextlib.contextmanager
    def _subdirectory(self, parent: int, name: str) -> Iterator[int]:
        directory = self._io.open_directory(parent, name)
        with self._closing(directory):
            yield directory

    @contextlib.contextmanager
    def _closing(self, handle: int) -> Iterator[None]:
        try:
            yield
        finally:
            self._io.close(handle)
