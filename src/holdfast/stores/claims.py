"""The fencing epoch: each writing process claims a higher number than all before it, and says who it is.

Two processes can never hold the same number (exclusive create), and whoever sees a higher one than its
own must stop. The lock file is only courtesy on top: locks get lost on network file systems, epochs do not.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.errors import CorruptCheckpoint, Fenced, RunInUse
from holdfast.format.names import MAX_WRITER_EPOCH
from holdfast.format.sealed import seal, unseal
from holdfast.stores.durable_write import write_small
from holdfast.stores.io import StoreIO
from holdfast.stores.owner import Owner, is_alive, is_same
from holdfast.stores.small_read import read_small

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


def claimed_epochs(io: StoreIO, writers: int) -> list[int]:
    matches = (_CLAIM.fullmatch(name) for name in io.list_names(writers))
    return without_jumps(int(match[1]) for match in matches if match)


def without_jumps(epochs: Iterable[int]) -> list[int]:
    """In order, up to the first gap that cannot be real; what lies beyond it counts for nothing."""
    kept: list[int] = []
    for epoch in sorted(epochs):
        if epoch - (kept[-1] if kept else 0) > MAX_JUMP:
            log.warning("holdfast: writer epoch %d is far beyond all others and is passed over", epoch)
            break
        kept.append(epoch)
    return kept


def read_claim(io: StoreIO, writers: int, epoch: int) -> Claim:
    try:
        record = unseal(read_small(io, writers, _file_name(epoch), MAX_CLAIM_BYTES))
    except (CorruptCheckpoint, OSError):
        # The number is what fences; who it was is only for messages and for sweeping early.
        return Claim(epoch, None)
    place, launch = (_text(record.get(name)) for name in ("place", "launch"))
    return Claim(epoch, Owner.from_json(record.get("owner")), place, launch)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def newest_claim(io: StoreIO, writers: int) -> Claim | None:
    epochs = claimed_epochs(io, writers)
    return read_claim(io, writers, epochs[-1]) if epochs else None


def is_earlier_generation(claim: Claim | None, me: Owner, launch: str | None) -> bool:
    """Whether the claimant is of the same job as this process, and so of a generation that has ended: a
    launcher has one at a time, and what is left of an old one only has not heard it yet."""
    if claim is None or claim.owner is None or launch is None:
        return False
    return claim.launch == launch and not is_same(claim.owner, me)


def take_claim(
    io: StoreIO,
    writers: int,
    me: Owner,
    *,
    at_least: int,
    place: str | None = None,
    launch: str | None = None,
) -> Claim:
    """Claim the next epoch, durably. Losing a race costs one more number, nothing else."""
    while True:
        epoch = max([at_least, *(taken + 1 for taken in claimed_epochs(io, writers)[-1:])])
        if epoch > MAX_WRITER_EPOCH:
            raise CorruptCheckpoint(f"writer epoch {epoch} is beyond what names can hold")
        try:
            said = {"format": 1, "owner": me.to_json(), "place": place}
            if launch is not None:
                said["launch"] = launch
            write_small(io, writers, _file_name(epoch), seal(said))
        except FileExistsError:
            at_least = epoch + 1
            continue
        io.fsync_directory(writers)
        return Claim(epoch, me, place, launch)


def require_unfenced(io: StoreIO, writers: int, mine: int, where: str) -> None:
    newest = max(claimed_epochs(io, writers), default=0)
    if newest > mine:
        owner = read_claim(io, writers, newest).owner
        raise Fenced(
            f"cannot write to {where}: {owner or 'another process'} has taken over with writer epoch {newest}"
            f" (this process holds {mine})",
            hint="let this process end; its earlier checkpoints are safe",
        )


def refuse_living_owner(io: StoreIO, writers: int, me: Owner, where: str) -> None:
    """For file systems without locks: refuse if the last claimant provably runs."""
    newest = newest_claim(io, writers)
    if newest is not None and newest.owner is not None and is_alive(newest.owner, me):
        raise run_in_use(where, newest.owner)


def run_in_use(where: str, owner: Owner | None) -> RunInUse:
    return RunInUse(
        f"{where} is being written by {owner or 'another process'}",
        hint="wait for it to end, stop it, or use another path",
    )


def _file_name(epoch: int) -> str:
    return f"{epoch:08d}.json"
