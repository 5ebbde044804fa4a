"""The memory tier: checkpoints in shared memory, which outlive the process that wrote them.

Its images are the staging memory itself. What was copied out of the training state is already where it has
to be; saving to this tier costs a digest and one small manifest, no second copy and no second memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Sequence

from holdfast.clock import Clock, SystemClock
from holdfast.errors import CorruptCheckpoint, Fenced, InternalError, RunInUse, StoreError, StoreNotFound
from holdfast.format.checksum import ALGORITHM, CHUNK_BYTES, chunk_count, chunk_span, digest
from holdfast.format.manifest import FileRecord, parse_manifest, utc_text
from holdfast.format.names import CheckpointName, parse_checkpoint_name
from holdfast.stores.base import ImageSource, StoreProperties
from holdfast.stores.owner import Owner, is_alive, this_process
from holdfast.stores.ownership import make_private
from holdfast.stores.side_by_side import side_by_side
from holdfast.tiers.memory_folder import (
    OWNER,
    default_root,
    read_owner,
    write_owner,
)
from holdfast.tiers.memory_slot import MemoryFile, MemorySlot, SharedMemory, address_of
from holdfast.units import format_bytes

SLOTS = 2
IN_MEMORY = StoreProperties(survives_process=True, survives_node=False, survives_job=False)
# What /dev/shm keeps for others: data loaders hand their batches over there.
_SPARE_BYTES = 64 << 20


class MemoryTier:
    """Satisfies Store. Two slots are written in turn, so one of them is always whole.

    >>> memory = MemoryTier(store.uuid, run="runs/resnet50")
    >>> memory.claim()
    >>> slot = memory.next_slot()
    >>> memory.slots[slot].allocate("model.safetensors", 1 << 30).view[:] = ...
    """

    def __init__(
        self,
        uuid: str,
        *,
        run: str = "",
        slots: int = SLOTS,
        root: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.uuid = uuid
        self.properties = IN_MEMORY
        self._root = root or default_root()
        self.where = os.path.join(self._root, uuid)
        self.slots: Sequence[MemorySlot] = [
            MemorySlot(os.path.join(self.where, f"slot-{number}")) for number in range(slots)
        ]
        self._run = os.path.abspath(run) if run else ""
        self._clock = clock if clock is not None else SystemClock()
        self._me: Owner | None = None
        self._places: dict[str, MemorySlot | None] = {}

    # ---- who writes here

    def claim(self, *, at_least: int = 1, take_over: bool = False) -> int:
        """Become the writer. What an earlier process left stays readable until its slot is needed."""
        make_private(self._root)
        make_private(self.where)
        me = this_process(utc_text(self._clock.wall()))
        owner, _ = read_owner(self.where)
        if owner is not None and not take_over and not _same(owner, me) and is_alive(owner, me):
            raise RunInUse(f"{self.where} is being written by {owner}", hint="wait for it to end, or stop it")
        write_owner(self.where, me, self._run)
        self._me = me
        return 0

    def release(self) -> None:
        """Nothing to give back: what lies here is the writer's until it ends."""

    def _require_mine(self) -> None:
        if self._me is None or self._me.pid != os.getpid():
            raise InternalError(f"this process is not the writer of {self.where}")
        owner, _ = read_owner(self.where)
        if owner != self._me:
            raise Fenced(
                f"cannot write to {self.where}: {owner or 'another process'} has taken over",
                hint="let this process end; its earlier checkpoints are safe",
            )

    # ---- the staging memory

    def next_slot(self, among: Collection[int] | None = None, *, spare: Collection[str] = ()) -> int | None:
        """The slot to write next: an empty one, else the one with the oldest checkpoint.

        Never the newest while there is another, never one whose checkpoint is in `spare` (it is still being
        copied elsewhere). None if that leaves nothing. `among` are the slots that are free, all if None.
        """
        held = {number: self._name_in(slot) for number, slot in enumerate(self.slots)}
        free = [n for n in (among if among is not None else held) if str(held[n]) not in spare]
        newest = max((name for name in held.values() if name), default=None)
        if len(self.slots) > 1:
            free = [number for number in free if held[number] is None or held[number] != newest]
        return min(free, key=lambda number: (held[number] is not None, held[number] or number), default=None)

    @property
    def newest_slot(self) -> int | None:
        """The slot that holds the newest whole checkpoint; None if none does."""
        held = [(name, n) for n, slot in enumerate(self.slots) if (name := self._name_in(slot))]
        return max(held)[1] if held else None

    def allocate(self, slot: int, file: str, nbytes: int) -> SharedMemory:
        """Memory of a slot for one image, to stage into. Unseals the slot."""
        self._require_mine()
        return self.slots[slot].allocate(file, nbytes)

    def reopen(self, slot: int) -> None:
        """Before anything is staged into a slot again: what it holds is no checkpoint any more."""
        self._require_mine()
        self.slots[slot].unseal()

    def lacks_room(self, image_bytes: int, *, slots: int = SLOTS, available_bytes: int) -> str | None:
        """Why `slots` images of this size do not fit, or None. `available_bytes` is the host's free memory;
        what this tier holds already counts as free."""
        need, mine = slots * image_bytes, self.held_bytes
        state = os.statvfs(self._root if os.path.isdir(self._root) else os.path.dirname(self._root))
        free = state.f_bavail * state.f_frsize + mine - _SPARE_BYTES
        if need > free:
            return f"{format_bytes(need)} do not fit into {format_bytes(max(free, 0))} of shared memory"
        if need > available_bytes + mine:
            return f"{format_bytes(need)} do not fit into {format_bytes(available_bytes + mine)} of memory"
        return None

    @property
    def held_bytes(self) -> int:
        """Memory that the files of this tier take now."""
        total = 0
        for slot in self.slots:
            with contextlib.suppress(FileNotFoundError), os.scandir(slot.path) as entries:
                total += sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in entries)
        return total

    # ---- writing

    def begin(self, name: str, need_bytes: int) -> None:
        self._require_mine()
        if parse_checkpoint_name(name) is None:
            raise InternalError(f"{name!r} is not the name of a checkpoint")
        if name in self._places or name in self.names():
            raise StoreError(f"{name} exists in {self.where} already", hint="names are never reused")
        self._places[name] = None

    def write(
        self, name: str, source: ImageSource, *, expect: FileRecord | None = None, replace: bool = False
    ) -> FileRecord:
        """Digest an image that was staged here; copy one that was not."""
        self._require_mine()
        if replace and expect is not None:
            self._slot_of(name).mend(source)
            return expect
        place = self._slot_staged_in(source)
        if place is None:
            return self._copy_in(name, source)
        if place.sealed is not None or self._places[name] not in (None, place):
            raise InternalError(f"{source.name} of {name} was staged into a slot that is not open for it")
        self._places[name] = place
        return _digested(source, source.size)

    def _copy_in(self, name: str, source: ImageSource) -> FileRecord:
        place = self._places[name]
        if place is None:
            taken = {id(slot) for slot in self._places.values()}
            number = self.next_slot([n for n, slot in enumerate(self.slots) if id(slot) not in taken])
            if number is None:
                raise StoreError(f"no slot is free in {self.where}", hint="let the save before this one end")
            place = self._places[name] = self.slots[number]
            place.clear()
        memory = place.allocate(source.name, source.size)
        return _digested(source, source.size, into=memory.view)

    def publish(self, name: str, manifest: bytes) -> None:
        self._require_mine()
        if name not in self._places:
            self._slot_of(name).seal(name, manifest)
            return
        place = self._places[name]
        if place is None:
            # A checkpoint without files of this process still has a manifest to find it by.
            number = self.next_slot()
            if number is None:
                raise StoreError(f"no slot is free in {self.where}")
            place = self.slots[number]
            place.clear()
        wanted = {record.name for record in parse_manifest(manifest).files}
        for stale in place.files - wanted:
            place.remove(stale)
        place.seal(name, manifest)
        del self._places[name]

    def abandon(self, name: str) -> None:
        if name in self.names():
            raise InternalError(f"{name} in {self.where} is committed and cannot be abandoned")
        self._places.pop(name, None)

    def retire(self, name: str) -> None:
        self._require_mine()
        self._slot_of(name).unseal()

    def leftovers(self, *, before: str | None = None) -> list[str]:
        return []

    def damaged_records(self, name: str, right: bytes) -> list[str]:
        """There is one copy, and `manifest` has looked at it."""
        return []

    def discard(self) -> None:
        """Give all memory back: the run has ended and what it holds is durable elsewhere."""
        self._require_mine()
        for slot in self.slots:
            slot.clear()
            with contextlib.suppress(OSError):
                os.rmdir(slot.path)
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.where, OWNER))
            os.rmdir(self.where)

    # ---- reading

    def names(self) -> list[str]:
        return [name for slot in self.slots if (name := slot.sealed) is not None]

    def manifest(self, name: str) -> bytes:
        try:
            return self._slot_of(name).manifest(name)
        except CorruptCheckpoint as error:
            raise CorruptCheckpoint(f"the manifest of {name} in {self.where}: {error.message}") from error

    def held(self, name: str) -> dict[str, int]:
        files = parse_manifest(self.manifest(name)).files
        here = self._slot_of(name).files
        return {record.name: record.size for record in files if record.name in here}

    def open(self, name: str, file: str) -> MemoryFile:
        return self._slot_of(name).open(name, file)

    def _slot_of(self, name: str) -> MemorySlot:
        for slot in self.slots:
            if slot.sealed == name:
                return slot
        raise StoreNotFound(f"there is no checkpoint {name!r} in {self.where}")

    def _name_in(self, slot: MemorySlot) -> CheckpointName | None:
        name = slot.sealed
        return parse_checkpoint_name(name) if name else None

    def _slot_staged_in(self, source: ImageSource) -> MemorySlot | None:
        if not source.concurrent or source.size == 0:
            return None
        try:
            address = address_of(source.view(0, 1))
        except TypeError:
            # Memory that nobody may write to cannot be ours.
            return None
        return next((slot for slot in self.slots if slot.holds(source.name, address)), None)


def _digested(source: ImageSource, size: int, into: memoryview | None = None) -> FileRecord:
    digests = [""] * chunk_count(size)

    def take(index: int) -> None:
        start, stop = chunk_span(index, size)
        piece = source.view(start, stop)
        if into is not None:
            into[start:stop] = piece
            piece = into[start:stop]
        digests[index] = digest(piece)

    side_by_side(take, len(digests), threads=2 if source.concurrent else 1)
    return FileRecord(source.name, size, "", ALGORITHM, CHUNK_BYTES, tuple(digests))


def _same(owner: Owner, me: Owner) -> bool:
    return (owner.pid, owner.start_ticks, owner.boot_id) == (me.pid, me.start_ticks, me.boot_id)
