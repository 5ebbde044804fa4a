"""The fencing epoch in an object store: a conditional create instead of an exclusive one.

There is no lock. Whoever claimed last and provably runs on this machine is not disturbed; anybody else is
succeeded, and finds a higher epoch than its own when it wants to commit.
"""

from __future__ import annotations

import contextlib
import re

from holdfast.errors import CorruptCheckpoint, Fenced, SetupError, StoreError, StoreNotFound, StoreUnavailable
from holdfast.format.names import MAX_WRITER_EPOCH
from holdfast.format.sealed import seal, unseal
from holdfast.stores.bucket import Bucket, KeyTaken
from holdfast.stores.claims import MAX_CLAIM_BYTES, Claim, run_in_use
from holdfast.stores.object_writes import create_once, new_token, read_small
from holdfast.stores.owner import Owner, is_alive
from holdfast.stores.patience import Patience

WRITERS = "writers/"
PROBES = "probes/"
_CLAIM = re.compile(r"writers/([0-9]{8})\.json", re.ASCII)


class ObjectClaims:
    """The claims of one store. `exclusive` says whether the server tells two creators apart."""

    def __init__(self, bucket: Bucket, patience: Patience) -> None:
        self._bucket = bucket
        self._patience = patience
        self.exclusive = False
        self._mine = b""

    def probe(self) -> bool:
        """Create one key twice. True if the second time was refused, as a claim must be."""
        key = f"{PROBES}{new_token()}"
        create_once(self._bucket, key, b"first", self._patience)
        self.exclusive = self._is_refused(key)
        with contextlib.suppress(StoreError):
            self._bucket.delete([key])
        return self.exclusive

    def _is_refused(self, key: str) -> bool:
        # Not create_once: after a lost answer it would look for itself, and this asks what the server does.
        for attempt in self._patience.tries():
            try:
                self._bucket.create(key, b"second")
            except KeyTaken:
                return True
            except StoreUnavailable:
                if attempt + 1 == self._patience.attempts:
                    raise
            else:
                break
        return False

    def epochs(self, *, above: int = 0) -> list[int]:
        matches = map(_CLAIM.fullmatch, self._bucket.keys(WRITERS, after=_key(above)))
        return sorted(int(match[1]) for match in matches if match)

    def read(self, epoch: int) -> Claim:
        try:
            record = unseal(read_small(self._bucket, _key(epoch), MAX_CLAIM_BYTES))
        except (CorruptCheckpoint, StoreNotFound):
            return Claim(epoch, None)
        return Claim(epoch, Owner.from_json(record.get("owner")))

    def take(self, me: Owner, *, at_least: int) -> int:
        """Claim the next epoch. Losing a race costs one more number, nothing else."""
        self._mine = seal({"format": 1, "owner": me.to_json(), "token": new_token()})
        while True:
            epoch = max([at_least, *(taken + 1 for taken in self.epochs()[-1:])])
            if epoch > MAX_WRITER_EPOCH:
                raise CorruptCheckpoint(f"writer epoch {epoch} is beyond what names can hold")
            try:
                create_once(
                    self._bucket, _key(epoch), self._mine, self._patience, look_first=not self.exclusive
                )
            except KeyTaken:
                at_least = epoch + 1
                continue
            return epoch

    def adopt(self, epoch: int) -> None:
        """Write under somebody's claim, as another rank of its job does. Fenced if it has been succeeded."""
        try:
            self._mine = read_small(self._bucket, _key(epoch), MAX_CLAIM_BYTES)
        except StoreNotFound as error:
            raise SetupError(
                f"nobody has claimed writer epoch {epoch} of {self._bucket.where}",
                hint="is this the place that the first rank writes to?",
            ) from error
        self.require_unfenced(epoch)

    def require_unfenced(self, mine: int) -> None:
        newest = max(self.epochs(above=mine), default=mine)
        if newest == mine and (self.exclusive or self._is_still_mine(mine)):
            return
        owner = self.read(newest).owner
        raise Fenced(
            f"cannot write to {self._bucket.where}: {owner or 'another process'} has taken over with writer"
            f" epoch {newest} (this process holds {mine})",
            hint="let this process end; its earlier checkpoints are safe",
        )

    def _is_still_mine(self, epoch: int) -> bool:
        """Without preconditions the last of two claimants wins the record: so look whether it was us."""
        try:
            return read_small(self._bucket, _key(epoch), MAX_CLAIM_BYTES) == self._mine
        except (CorruptCheckpoint, StoreNotFound):
            return False

    def refuse_living_owner(self, me: Owner, *, certain: bool = False) -> None:
        """RunInUse if the last claimant runs on this machine; with `certain`, also if nobody can know."""
        epochs = self.epochs()
        owner = self.read(epochs[-1]).owner if epochs else None
        alive = is_alive(owner, me) if owner is not None else False
        if alive is False or (alive is None and not certain):
            return
        if self._bucket.look(_released(epochs[-1])) is not None:
            return
        raise run_in_use(self._bucket.where, owner)

    def release(self, epoch: int) -> None:
        """Say that this claimant is done although its process lives on. Best effort: its end says so too."""
        with contextlib.suppress(StoreError):
            self._bucket.create(_released(epoch), seal({"format": 1, "epoch": epoch}))


def _key(epoch: int) -> str:
    return f"{WRITERS}{epoch:08d}.json"


def _released(epoch: int) -> str:
    return f"{WRITERS}{epoch:08d}.released"
