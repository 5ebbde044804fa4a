"""Checkpoints in a bucket: the same names, records and order of events as in a directory.

Data first, one sealed manifest last, by a conditional create: that single request is the commit. Nothing is
overwritten, no name is used twice. A copy of the bucket's objects into a directory is a DirectoryStore.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Self

from holdfast.clock import Clock, SystemClock
from holdfast.errors import CorruptCheckpoint, InternalError, StoreError, StoreNotFound
from holdfast.format.manifest import FileRecord, utc_text
from holdfast.format.names import is_file_name, parse_checkpoint_name
from holdfast.format.sealed import MAX_SEALED_BYTES, check_seal, seal
from holdfast.stores.base import ImageSource, StoreProperties
from holdfast.stores.bucket import Bucket, KeyTaken
from holdfast.stores.leftovers import GRACE_SECONDS, Unfinished, Watch, is_abandoned
from holdfast.stores.object_claims import ObjectClaims
from holdfast.stores.object_file import ObjectFile
from holdfast.stores.object_identity import make_identity, read_identity
from holdfast.stores.object_seat import ObjectSeat
from holdfast.stores.object_writes import create_once, new_token, read_small, upload_image
from holdfast.stores.owner import is_alive, this_process
from holdfast.stores.patience import Patience

MANIFEST, SECOND, PART, DEAD = "MANIFEST", "MANIFEST.2", "MANIFEST.part", "MANIFEST.dead"
RECORDS = frozenset({MANIFEST, SECOND, PART, DEAD})
BUCKET = StoreProperties(
    survives_process=True, survives_node=True, survives_job=True, exclusive_create=True, survives_site=True
)
_DELETING_ROUNDS = 3
log = logging.getLogger("holdfast")


class ObjectStore:
    """Satisfies Store.

    >>> store = open_store("s3://bucket/runs/resnet50")
    >>> epoch = store.claim()      # only to write
    """

    def __init__(
        self,
        bucket: Bucket,
        *,
        clock: Clock | None = None,
        properties: StoreProperties = BUCKET,
        uuid: str | None = None,
        grace_seconds: float = GRACE_SECONDS,
        patience: Patience | None = None,
    ) -> None:
        self.where = bucket.where
        self._bucket = bucket
        self._clock = clock if clock is not None else SystemClock()
        self._properties = properties
        self._wanted_uuid = uuid
        self._uuid: str | None = None
        self._grace_seconds = grace_seconds
        self._patience = patience if patience is not None else Patience()
        self._claims = ObjectClaims(bucket, self._patience)
        self._seat = ObjectSeat(self._claims, self.where)
        self._in_progress: set[str] = set()
        self._in_doubt: set[str] = set()
        self._watch = Watch()

    # ---- who writes here

    @property
    def properties(self) -> StoreProperties:
        """`exclusive_create` is promised only once `claim` has seen the server keep it."""
        exclusive = self._properties.exclusive_create and self._claims.exclusive
        return replace(self._properties, exclusive_create=exclusive)

    @property
    def uuid(self) -> str:
        if self._uuid is None:
            self._uuid = read_identity(self._bucket)
        return self._uuid

    @property
    def writer_epoch(self) -> int:
        return self._seat.epoch

    def claim(self, *, at_least: int = 1, take_over: bool = False, certain: bool = False) -> int:
        """Become the writer and return the writer epoch, higher than any before.

        Raises RunInUse while the last writer provably runs on this machine; one on another machine is
        succeeded and cannot commit any more. `take_over` does the same to one on this machine; `certain`
        refuses one on another machine too, unless it said that it has ended.
        """
        if self._seat.is_mine:
            return self._seat.epoch
        self._probe()
        make_identity(self._bucket, self._wanted_uuid, self._patience)
        self._uuid = read_identity(self._bucket)
        me = this_process(utc_text(self._clock.wall()))
        if not take_over:
            self._claims.refuse_living_owner(me, certain=certain)
        # Names count too: a lost claim must not bring back an epoch that names already bear.
        used = [name.writer_epoch + 1 for name in map(parse_checkpoint_name, self._places()) if name]
        return self._seat.take(me, at_least=max([1, at_least, *used]))

    def join(self, writer_epoch: int) -> None:
        """Write beside the process that claimed `writer_epoch`: another rank of the same job.

        Takes no number of its own. Raises Fenced if somebody has taken over since.
        """
        self._probe()
        self._seat.join(writer_epoch)

    def _probe(self) -> None:
        if not self._claims.probe():
            log.warning(
                "%s ignores preconditions (If-None-Match), so two writers cannot be told apart for certain:"
                " make sure that only one job writes there",
                self.where,
            )

    def release(self) -> None:
        """Give the writer's seat back. Committed checkpoints need no closing."""
        self._seat.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    # ---- writing

    def begin(self, name: str, need_bytes: int) -> None:
        """Buckets have no size to ask for; a quota shows when it is hit."""
        self._require_ours(name)
        self._seat.require_unfenced()
        if self._inside(name):
            raise KeyTaken(f"{name} in {self.where} exists", hint="names are never reused")
        self._in_progress.add(name)
        try:
            # Makes the place visible to sweepers: parts of an upload are not, until all are there.
            self._create(name, PART, seal({"format": 1, "token": new_token()}))
        except BaseException:
            self._in_progress.discard(name)
            raise

    def write(self, name: str, source: ImageSource) -> FileRecord:
        self._require_ours(name)
        if not is_file_name(source.name):
            raise InternalError(f"{source.name!r} may not name a file of a checkpoint")
        return upload_image(self._bucket, _key(name, source.name), source, self._patience)

    def publish(self, name: str, manifest: bytes) -> None:
        self._require_ours(name)
        check_seal(manifest)
        self._create(name, SECOND, manifest)
        self._seat.require_unfenced()
        # From here on the request may arrive at any time, even after we have given up on it.
        self._in_doubt.add(name)
        self._create(name, MANIFEST, manifest)
        self._in_doubt.discard(name)
        self._in_progress.discard(name)
        with contextlib.suppress(StoreError):
            self._bucket.delete([_key(name, PART)])

    def abandon(self, name: str) -> None:
        self._require_ours(name)
        self._in_progress.discard(name)
        inside = self._inside(name)
        if _is_committed(inside):
            raise InternalError(f"{name} in {self.where} is committed and cannot be abandoned")
        if name in self._in_doubt and DEAD not in inside:
            # A commit that is still under way must not vouch for what is deleted now: the tombstone beats it.
            self._create(name, DEAD, seal({"format": 1, "token": new_token()}))
        self._remove(name)

    def retire(self, name: str) -> None:
        self._require_ours(name)
        self._seat.require_unfenced()
        if MANIFEST not in self._inside(name):
            raise StoreNotFound(f"there is no checkpoint {name} in {self.where}")
        # Uncommit before the first byte goes: a crash in between must not leave a manifest that vouches for
        # missing data.
        with contextlib.suppress(KeyTaken):
            self._create(name, DEAD, seal({"format": 1, "token": new_token()}))
        self._remove(name)

    def _remove(self, name: str) -> None:
        """Manifest first, tombstone last. The tombstone stays while anything foreign does, or any doubt."""
        self._bucket.delete([_key(name, MANIFEST)])
        for _ in range(_DELETING_ROUNDS):
            inside = self._inside(name)
            # The marker goes after the data: while there is any, sweepers must see the place.
            ours = [entry for entry in inside if entry in RECORDS - {DEAD, PART} or is_file_name(entry)]
            if not ours:
                break
            self._bucket.delete([_key(name, entry) for entry in ours])
        if set(inside) <= {DEAD, PART}:
            self._bucket.delete([_key(name, PART)])
            if name not in self._in_doubt:
                self._bucket.delete([_key(name, DEAD)])

    # ---- reading

    def names(self) -> list[str]:
        return [name for name, inside in self._places().items() if _is_committed(inside)]

    def leftovers(self) -> list[str]:
        """Unfinished places whose writer cannot come back, for `abandon`. Only the writer may ask."""
        # Before the listing and after it: what another thread begins or commits meanwhile is nobody's litter.
        in_progress = frozenset(self._in_progress)
        places = [
            self._look_unfinished(name, inside)
            for name, inside in self._places().items()
            if not _is_committed(inside) and name not in self._in_doubt
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

    def _look_unfinished(self, text: str, inside: Collection[str]) -> Unfinished:
        name = parse_checkpoint_name(text)
        assert name is not None
        owner = self._claims.read(name.writer_epoch).owner
        alive = is_alive(owner, this_process("")) if owner else None
        return Unfinished(name, tuple(sorted(inside)), DEAD in inside, alive)

    def manifest(self, name: str) -> bytes:
        if parse_checkpoint_name(name) is None:
            raise StoreNotFound(f"{name!r} is not the name of a checkpoint")
        try:
            return self._read_sealed(name, MANIFEST)
        except CorruptCheckpoint as first:
            # Any other error of the second copy proves nothing: it may be whole.
            with contextlib.suppress(CorruptCheckpoint, StoreNotFound):
                return self._read_sealed(name, SECOND)
            raise CorruptCheckpoint(f"{MANIFEST} of {name} in {self.where}: {first.message}") from first

    def _read_sealed(self, name: str, record: str) -> bytes:
        data = read_small(self._bucket, _key(name, record), MAX_SEALED_BYTES)
        check_seal(data)
        return data

    def open(self, name: str, file: str) -> ObjectFile:
        if parse_checkpoint_name(name) is None or not is_file_name(file):
            raise StoreNotFound(f"{name!r}/{file!r} is not a file of a checkpoint")
        return ObjectFile(self._bucket, _key(name, file))

    # ---- how

    def _places(self) -> dict[str, list[str]]:
        """Every place of ours with the names inside it."""
        found: dict[str, list[str]] = {}
        for key in self._bucket.keys("ckpt/"):
            name, slash, entry = key.removeprefix("ckpt/").partition("/")
            if slash and parse_checkpoint_name(name):
                found.setdefault(name, []).append(entry)
        return found

    def _inside(self, name: str) -> list[str]:
        return [key.removeprefix(_key(name, "")) for key in self._bucket.keys(_key(name, ""))]

    def _create(self, name: str, record: str, data: bytes) -> None:
        look_first = not self._claims.exclusive
        create_once(self._bucket, _key(name, record), data, self._patience, look_first=look_first)

    def _require_ours(self, name: str) -> None:
        _ = self.writer_epoch
        if parse_checkpoint_name(name) is None:
            raise InternalError(f"{name!r} is not the name of a checkpoint")


def _key(name: str, entry: str) -> str:
    return f"ckpt/{name}/{entry}"


def _is_committed(inside: Collection[str]) -> bool:
    return MANIFEST in inside and DEAD not in inside
