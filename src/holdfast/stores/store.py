"""Checkpoints in a place: who may write, what is committed, what may be removed. The same for every place.

Immutable data first, one sealed manifest last: that single step is the commit. Nothing is overwritten and no
name is used twice. Reading writes nothing and takes no lock; writing needs `claim()` first.
"""

from __future__ import annotations

import contextlib
import os
from typing import Self

from holdfast.clock import Clock, SystemClock
from holdfast.errors import CorruptCheckpoint, InternalError, StoreError, StoreFull, StoreNotFound
from holdfast.format.manifest import FileRecord, parse_manifest, utc_text
from holdfast.format.names import DEAD, is_committed, is_held_name, parse_checkpoint_name
from holdfast.format.sealed import check_seal
from holdfast.stores.base import SHARED_DISK, ImageSource, KeyTaken, StoreProperties
from holdfast.stores.claims import (
    Claim,
    NoLease,
    WriterLease,
    claimed_epochs,
    is_earlier_generation,
    newest_claim,
    read_claim,
    without_jumps,
)
from holdfast.stores.folder_place import FolderPlace
from holdfast.stores.identity import become_its_own, make_identity, read_identity
from holdfast.stores.io import StoreIO
from holdfast.stores.leftovers import GRACE_SECONDS, Unfinished, Watch, is_abandoned, sweep
from holdfast.stores.owner import Owner, is_alive, this_process
from holdfast.stores.place import CKPT, WRITERS, Place
from holdfast.stores.stored_checkpoints import StoredCheckpoints
from holdfast.units import format_bytes


class CheckpointStore(StoredCheckpoints):
    """Satisfies Store, over any place; a path stands for the folder there.

    >>> store = CheckpointStore("runs/resnet50")
    >>> epoch = store.claim()      # only to write; raises RunInUse while another process does

    With `one_writer=False` no claim is needed: the processes of a node write side by side, each its own
    files, and files may be added to what is committed. What a file must contain, the manifest says, so two
    can only write the same bytes. `makes_room`: what earlier attempts began there goes where room is lacking.
    """

    def __init__(
        self,
        place: str | os.PathLike[str] | Place,
        *,
        io: StoreIO | None = None,
        clock: Clock | None = None,
        properties: StoreProperties = SHARED_DISK,
        uuid: str | None = None,
        spare_bytes: int = 16 << 20,
        grace_seconds: float = GRACE_SECONDS,
        threads: int = 3,
        one_writer: bool = True,
        makes_room: bool = False,
    ) -> None:
        if isinstance(place, str | os.PathLike):
            place = FolderPlace(place, io, threads=threads)
        super().__init__(place)
        self.properties = properties
        self._clock = clock if clock is not None else SystemClock()
        self._wanted_uuid = uuid
        self._spare_bytes = spare_bytes
        self._grace_seconds = grace_seconds
        self._one_writer = one_writer
        self._makes_room = makes_room
        self._lease: WriterLease | NoLease = WriterLease(place) if one_writer else NoLease()
        # What this process has begun: its own sweeper leaves it alone.
        self._in_progress: set[str] = set()
        self._watch = Watch()
        self._last_listed: tuple[str, dict[str, FileRecord]] = ("", {})

    # ---- who writes here

    @property
    def uuid(self) -> str:
        if not self._one_writer and self._wanted_uuid is not None:
            return self._wanted_uuid
        return super().uuid

    @property
    def writer_epoch(self) -> int:
        return self._lease.epoch

    @property
    def needs_claim(self) -> bool:
        """Whether only the process that has claimed it writes here."""
        return self._one_writer

    def claim(
        self, *, at_least: int = 1, take_over: bool = False, launch: str | None = None, certain: bool = False
    ) -> int:
        """Become the writer and return the writer epoch, higher than any before.

        Raises RunInUse while another process writes here; in a bucket, which has no locks, while the last
        writer provably runs on this machine. `take_over` skips that courtesy: the other one is fenced off and
        cannot commit any more. So does a `launch` that is the other one's too: it is left of an earlier
        generation of the same job. `certain` refuses also where nobody can know, unless the last writer said
        that it has ended.
        """
        if self._lease.is_mine:
            return self._lease.epoch
        # A child's copy of its parent's lease is dropped, not released: the parent still holds it.
        self._lease = lease = WriterLease(self._place)
        me = this_process(utc_text(self._clock.wall()))
        self._place.probe()
        self._place.prepare(CKPT, WRITERS)
        try:
            with self._place.hold(CKPT, WRITERS):
                newest = self._newest_claim()
                take_over = take_over or is_earlier_generation(newest, me, launch)
                lease.refuse_others(newest, me, take_over=take_over, certain=certain)
                epoch = self._take(lease, me, at_least, launch)
        except BaseException:
            self._place.let_go()
            raise
        # Now, and not after the next commit: on a disk that they fill there would be none.
        self._sweep()
        return epoch

    def _newest_claim(self) -> Claim | None:
        try:
            return newest_claim(self._place)
        except StoreError:
            if not self._place.reads_fail_alone:
                raise
            return None

    def _take(self, lease: WriterLease, me: Owner, at_least: int, launch: str | None) -> int:
        make_identity(self._place, self._wanted_uuid)
        last = newest_claim(self._place)
        if last is not None and last.place is not None:
            become_its_own(self._place, last.place)
        # Always: whoever made these may have been killed before it made them durable.
        self._place.sync()
        self._known = read_identity(self._place)
        # Names count too: a lost claim must not bring back an epoch that names already bear.
        entries = {entry.partition("/")[0] for entry in self._place.entries(CKPT)}
        named = [name.writer_epoch for name in map(parse_checkpoint_name, entries) if name]
        used = without_jumps([*claimed_epochs(self._place), *named])
        return lease.take(me, at_least=max(at_least, used[-1] + 1 if used else 1), launch=launch)

    def join(self, writer_epoch: int) -> None:
        """Write beside the process that claimed `writer_epoch`: another rank of the same job.

        Takes no lock and no number of its own. Raises Fenced if somebody has taken over since.
        """
        self.release()
        self._lease = lease = WriterLease(self._place)
        self._place.probe()
        lease.join(writer_epoch)

    def release(self) -> None:
        """Give the right to write back. Committed checkpoints need no closing."""
        if self._lease.is_mine:
            self._lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    # ---- writing

    def begin(self, name: str, need_bytes: int) -> None:
        self._require_ours(name)
        if not self._one_writer:
            if self._place.state(name) is not None:
                raise KeyTaken(f"{name} is in {self.where} already", hint="names are never reused")
            self._in_progress.add(name)
            try:
                self._begin_copy(name)
                self._require_room(name, need_bytes)
            except BaseException:
                self._in_progress.discard(name)
                raise
            return
        with self._place.hold(CKPT, WRITERS):
            self._lease.require_unfenced()
            self._require_room(name, need_bytes)
            self._in_progress.add(name)
            try:
                self._place.begin(name)
            except BaseException:
                # Whatever it left is nobody's work any more: the next sweep takes it.
                self._in_progress.discard(name)
                raise

    def write(
        self, name: str, source: ImageSource, *, expect: FileRecord | None = None, replace: bool = False
    ) -> FileRecord:
        self._require_ours(name)
        if not is_held_name(source.name):
            raise InternalError(f"{source.name!r} may not name a file of a checkpoint")
        try:
            if self._one_writer and expect is None:
                return self._place.write(name, source)
            return self._add(name, source, expect, replace)
        except StoreFull:
            # A quota, or somebody else took the room. The next save finds what can be given back.
            self._sweep()
            raise

    def _add(self, name: str, source: ImageSource, expect: FileRecord | None, replace: bool) -> FileRecord:
        self._lease.require_unfenced()
        if name not in self._in_progress or not self._one_writer:
            # Whoever asks: what a committed manifest lists can only become what it says.
            expect = self._listed(name).get(source.name, expect)
        # What was begun here and is gone was taken away, with the files that were in it.
        if name not in self._in_progress:
            self._go_on_with(name)
        self._require_room(name, source.size)
        return self._place.add(name, source, expect, replace=replace)

    def _go_on_with(self, name: str) -> None:
        """Make sure that files can be added to this checkpoint."""
        state = self._place.state(name)
        if state == "begun" and self._one_writer:
            # A dead writer's. Should it live after all, it would take away what is put beside its files.
            self._place.clear(name)
            state = None
        if state is None:
            self._begin_copy(name)

    def _begin_copy(self, name: str) -> None:
        if not self._one_writer:
            self._place.prepare(CKPT)
            if self._wanted_uuid is not None:
                make_identity(self._place, self._wanted_uuid)
            self._place.sync()
        self._place.begin_copy(name)
        if self._one_writer:
            self._in_progress.add(name)

    def publish(self, name: str, manifest: bytes) -> None:
        self._require_ours(name)
        check_seal(manifest)
        if name not in self._in_progress:
            if self._is_there_already(name, manifest):
                return
            self._go_on_with(name)
        elif not self._one_writer:
            self._require_all(name, manifest)
        with self._place.hold():
            self._place.commit(name, manifest, self._lease.require_unfenced)
        self._in_progress.discard(name)

    def _require_all(self, name: str, manifest: bytes) -> None:
        """What this process has begun and filled alone must be whole: other processes may remove here."""
        held = self.held(name)
        for record in parse_manifest(manifest).files:
            if held.get(record.name) != record.size:
                raise StoreError(
                    f"{record.name} of {name} is not in {self.where} any more",
                    hint="somebody removes files there while they are written",
                )

    def _is_there_already(self, name: str, manifest: bytes) -> bool:
        """Whether it is committed with this manifest, both copies right; a damaged one is replaced."""
        try:
            committed = self.manifest(name)
        except StoreNotFound:
            return False
        except CorruptCheckpoint:
            committed = manifest
        if committed != manifest:
            raise StoreError(
                f"{name} in {self.where} has another manifest", hint="two runs may share this folder"
            )
        for record in self._damaged(name, manifest):
            self._place.replace(f"{CKPT}/{name}/{record}", manifest)
        return True

    def abandon(self, name: str) -> None:
        self._require_ours(name)
        self._in_progress.discard(name)
        self._place.clear(name)

    def retire(self, name: str) -> None:
        self._require_ours(name)
        with self._place.hold(CKPT):
            self._lease.require_unfenced()
            self._place.bury(name)
            self._place.clear(name)

    # ---- what dead writers left

    def leftovers(self, *, before: str | None = None) -> list[str]:
        """Unfinished checkpoints whose writer cannot come back, for `abandon`. Only the writer may ask.

        With `before`, also copies of older checkpoints that were begun and could still be finished.
        """
        copies = self._place.copies() if before is not None else []
        return sorted({*self._abandoned(), *(copy for copy in copies if copy < (before or ""))})

    def _abandoned(self) -> list[str]:
        # Before the listing and after it: what another thread begins or commits meanwhile is nobody's litter.
        in_progress = frozenset(self._in_progress)
        if not self._one_writer:
            # All that this process does not fill; and what was not retired to its end.
            dead = [name for name, inside in self._place.listing().items() if DEAD in inside]
            unfinished = [*self._place.copies(), *dead]
            return [name for name in unfinished if name not in in_progress | self._in_progress]
        places = [
            self._look_unfinished(name, inside)
            for name, inside in self._place.listing().items()
            if not is_committed(inside)
        ]
        unchanged = self._watch.unchanged_seconds(places, self._clock.monotonic())
        return [
            str(place.name)
            for place in places
            if is_abandoned(
                place,
                my_epoch=self.writer_epoch,
                in_progress=in_progress | self._in_progress,
                unchanged_seconds=unchanged[place.name],
                grace_seconds=self._grace_seconds,
            )
        ]

    def _look_unfinished(self, text: str, inside: list[str]) -> Unfinished:
        name = parse_checkpoint_name(text)
        assert name is not None
        owner = read_claim(self._place, name.writer_epoch).owner
        alive = is_alive(owner, this_process("")) if owner else None
        return Unfinished(name, tuple(sorted(inside)), DEAD in inside, alive)

    def _sweep(self) -> None:
        """What dead writers left goes, as far as that is possible: too much litter hurts only where it fills
        the disk, and there the next save says so."""
        if not self._lease.is_guest:
            with contextlib.suppress(StoreError, InternalError):
                # In a bucket, which is never full, another process may go on with what one has begun.
                if self._place.free_bytes() is not None:
                    sweep(self)

    def _sweep_before(self, name: str) -> None:
        """What earlier attempts of the job began here and never finished: nobody will."""
        mine = parse_checkpoint_name(name)
        with contextlib.suppress(StoreError, InternalError):
            for left in self._place.copies():
                other = parse_checkpoint_name(left)
                if mine and other and other.writer_epoch < mine.writer_epoch:
                    self.abandon(left)

    # ---- how

    def _require_room(self, name: str, need_bytes: int) -> None:
        if self._lacks(need_bytes) is None:
            return
        if self._makes_room:
            self._sweep_before(name)
        else:
            self._sweep()
        if (free := self._lacks(need_bytes)) is not None:
            raise StoreFull(
                f"cannot begin {name} in {self.where}: it needs {format_bytes(need_bytes)}"
                f" and {format_bytes(free)} are free",
                hint="free space or keep fewer checkpoints",
            )

    def _lacks(self, need_bytes: int) -> int | None:
        """What is free, if it is too little."""
        free = self._place.free_bytes()
        return free if free is not None and free < need_bytes + self._spare_bytes else None

    def _listed(self, name: str) -> dict[str, FileRecord]:
        """The files of a committed checkpoint, by its manifest. Kept for one: files come in a row."""
        if self._last_listed[0] != name:
            try:
                files = parse_manifest(self.manifest(name)).files
            except (StoreNotFound, CorruptCheckpoint):
                return {}
            self._last_listed = (name, {record.name: record for record in files})
        return self._last_listed[1]

    def _require_ours(self, name: str) -> None:
        _ = self._lease.epoch
        if parse_checkpoint_name(name) is None:
            raise InternalError(f"{name!r} is not the name of a checkpoint")
