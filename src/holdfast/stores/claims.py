"""The fencing epoch: each writing process claims a higher number than all before it, and says who it is.

Two processes can never hold the same number (exclusive create), and whoever sees a higher one than its
own must stop. The lock is only courtesy on top: locks get lost on network file systems, epochs do not.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.errors import CorruptCheckpoint, Fenced, RunInUse, SetupError, StoreError, StoreNotFound
from holdfast.format.names import MAX_WRITER_EPOCH
from holdfast.format.sealed import seal, unseal
from holdfast.stores.base import KeyTaken
from holdfast.stores.owner import Owner, is_alive, is_same
from holdfast.stores.place import WRITERS, Place

MAX_CLAIM_BYTES = 64 << 10
# Each start of a process takes one number. A gap that no number of starts explains was made by hand, or by
# somebody who wants every later start to fail at the end of the numbers.
MAX_JUMP = 1_000_000
log = logging.getLogger("holdfast")
_CLAIM = re.compile(r"([0-9]{8})\.json", re.ASCII)


@dataclass(frozen=True)
class Claim:
    """`owner` is None where the record cannot be read: its writer may have died while claiming. `place` is
    where the store lay then, `launch` what started its team."""

    epoch: int
    owner: Owner | None
    place: str | None = None
    launch: str | None = None


def claimed_epochs(place: Place, *, above: int = 0) -> list[int]:
    """In order. Those up to `above` may be missing."""
    after = _file_name(above) if above else ""
    matches = (_CLAIM.fullmatch(name) for name in place.entries(WRITERS, after=after))
    return without_jumps((int(match[1]) for match in matches if match), above)


def without_jumps(epochs: Iterable[int], start: int = 0) -> list[int]:
    """In order, up to the first gap that cannot be real; what lies beyond it counts for nothing."""
    kept: list[int] = []
    for epoch in sorted(epochs):
        if epoch - (kept[-1] if kept else start) > MAX_JUMP:
            log.warning("holdfast: writer epoch %d is far beyond all others and is passed over", epoch)
            break
        kept.append(epoch)
    return kept


def read_claim(place: Place, epoch: int) -> Claim:
    try:
        record = unseal(place.read(_path(epoch), MAX_CLAIM_BYTES))
    except (CorruptCheckpoint, StoreNotFound):
        # The number is what fences; who it was is only for messages and for sweeping early.
        return Claim(epoch, None)
    except StoreError:
        if not place.reads_fail_alone:
            raise
        return Claim(epoch, None)
    made_at, launch = (_text(record.get(name)) for name in ("place", "launch"))
    return Claim(epoch, Owner.from_json(record.get("owner")), made_at, launch)


def newest_claim(place: Place) -> Claim | None:
    """Who claimed last; None where nobody has."""
    try:
        epochs = claimed_epochs(place)
    except StoreNotFound:
        return None
    return read_claim(place, epochs[-1]) if epochs else None


def is_earlier_generation(claim: Claim | None, me: Owner, launch: str | None) -> bool:
    """Whether the claimant is of the same job as this process, and so of a generation that has ended: a
    launcher has one at a time, and what is left of an old one only has not heard it yet."""
    if claim is None or claim.owner is None or launch is None:
        return False
    return claim.launch == launch and not is_same(claim.owner, me)


class WriterLease:
    """The right to write into one place: the courtesy lock, the epoch, and the process that holds both.

    Empty until taken. A forked child inherits the object but never the right."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._epoch = 0
        self._pid = -1
        self._record = b""
        self._has_locks = True
        # Whether another process holds the claim: what it has in progress, only that one knows.
        self.is_guest = False

    @property
    def is_mine(self) -> bool:
        return self._pid == os.getpid()

    @property
    def epoch(self) -> int:
        if not self.is_mine:
            raise SetupError(
                f"this process is not the writer of {self._place.where}",
                hint="call claim() first; a forked child must not write for its parent",
            )
        return self._epoch

    def refuse_others(self, newest: Claim | None, me: Owner, *, take_over: bool, certain: bool) -> None:
        """Take the lock; RunInUse if another process holds it. Where there are no locks: if the last claimant
        runs on this machine; with `certain`, also if nobody can know."""
        locked = self._place.lock()
        self._has_locks = locked is not None
        if locked or take_over:
            return
        if locked is None:
            owner = newest.owner if newest is not None else None
            alive = is_alive(owner, me) if owner is not None else False
            if alive is False or (alive is None and not certain) or self._is_released(newest):
                return
        raise RunInUse(
            f"{self._place.where} is being written by {(newest and newest.owner) or 'another process'}",
            hint="wait for it to end, stop it, or use another path",
        )

    def _is_released(self, claim: Claim | None) -> bool:
        try:
            return claim is not None and bool(self._place.read(_released(claim.epoch), MAX_CLAIM_BYTES))
        except (StoreNotFound, CorruptCheckpoint):
            return False

    def take(self, me: Owner, *, at_least: int, launch: str | None = None) -> int:
        """Claim the next epoch, durably. Losing a race costs one more number, nothing else."""
        # The token tells our record from an equal one of somebody else. Never from a seeded generator.
        said = {"format": 1, "owner": me.to_json(), "place": self._place.where, "token": os.urandom(8).hex()}
        if launch is not None:
            said["launch"] = launch
        self._record = seal(said)
        while True:
            epoch = max([at_least, *(taken + 1 for taken in claimed_epochs(self._place)[-1:])])
            if epoch > MAX_WRITER_EPOCH:
                raise CorruptCheckpoint(f"writer epoch {epoch} is beyond what names can hold")
            try:
                self._place.create(_path(epoch), self._record)
            except KeyTaken:
                at_least = epoch + 1
                continue
            self._epoch, self._pid = epoch, os.getpid()
            return epoch

    def join(self, epoch: int) -> None:
        """Write under somebody's claim, as another rank of its job does. Fenced if it has been succeeded."""
        with contextlib.suppress(StoreNotFound):
            self._record = self._place.read(_path(epoch), MAX_CLAIM_BYTES)
        self._require_newest(epoch)
        if not self._record:
            raise SetupError(
                f"nobody has claimed writer epoch {epoch} of {self._place.where}",
                hint="is this the place that rank 0 writes to, and do all ranks share it?",
            )
        self._epoch, self._pid, self.is_guest = epoch, os.getpid(), True

    def require_unfenced(self) -> None:
        self._require_newest(self.epoch)

    def _require_newest(self, mine: int) -> None:
        newest = max(claimed_epochs(self._place, above=mine), default=mine)
        if newest <= mine and (self._place.is_exclusive or self._is_still(mine)):
            return
        owner = read_claim(self._place, newest).owner
        raise Fenced(
            f"cannot write to {self._place.where}: {owner or 'another process'} has taken over with writer"
            f" epoch {newest} (this process holds {mine})",
            hint="let this process end; its earlier checkpoints are safe",
        )

    def _is_still(self, epoch: int) -> bool:
        """Where nobody is refused, the last of two claimants has the record: so look whether it was us."""
        try:
            return self._place.read(_path(epoch), MAX_CLAIM_BYTES) == self._record
        except (CorruptCheckpoint, StoreNotFound):
            return False

    def release(self) -> None:
        if self.is_mine and not self._has_locks and not self.is_guest:
            # Say that this claimant is done although its process lives on. Its end says so, too.
            with contextlib.suppress(StoreError):
                self._place.create(_released(self._epoch), seal({"format": 1, "epoch": self._epoch}))
        self._pid = -1
        self._place.let_go()


class NoLease:
    """For a place that needs no claim: processes of one node write side by side, each its own files."""

    is_mine = True
    is_guest = True
    epoch = 0

    def require_unfenced(self) -> None: ...

    def release(self) -> None: ...


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _file_name(epoch: int) -> str:
    return f"{epoch:08d}.json"


def _path(epoch: int) -> str:
    return f"{WRITERS}/{_file_name(epoch)}"


def _released(epoch: int) -> str:
    return f"{WRITERS}/{epoch:08d}.released"
