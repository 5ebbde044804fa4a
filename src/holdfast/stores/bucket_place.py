"""A place in a bucket: the same names, records and order of events as in a folder.

One conditional create is the commit. A copy of the bucket's objects into a folder is a store, too.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from holdfast.errors import InternalError, StoreError, StoreNotFound, StoreUnavailable
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
from holdfast.format.sealed import seal
from holdfast.stores.base import ImageSource, KeyTaken
from holdfast.stores.bucket import Bucket
from holdfast.stores.object_file import ObjectFile
from holdfast.stores.object_writes import create_once, new_token, read_small, upload_image
from holdfast.stores.patience import Patience
from holdfast.stores.place import CKPT, State

PROBES = "probes/"
_DELETING_ROUNDS = 3
log = logging.getLogger("holdfast")


class BucketPlace:
    """Satisfies Place."""

    # A server that does not answer for one record does not for the other.
    reads_fail_alone = False

    def __init__(self, bucket: Bucket, patience: Patience | None = None) -> None:
        self.where = bucket.where
        self.is_exclusive = False
        self._bucket = bucket
        self._patience = patience if patience is not None else Patience()
        # Commits whose answer never came: the request may still arrive.
        self._in_doubt: set[str] = set()

    # ---- the store's own records

    def probe(self) -> None:
        """Create one key twice: the second time must be refused, as a claim must be."""
        key = f"{PROBES}{new_token()}"
        create_once(self._bucket, key, b"first", self._patience)
        self.is_exclusive = self._is_refused(key)
        with contextlib.suppress(StoreError):
            self._bucket.delete([key])
        if not self.is_exclusive:
            log.warning(
                "%s ignores preconditions (If-None-Match), so two writers cannot be told apart for certain:"
                " make sure that only one job writes there",
                self.where,
            )

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

    def prepare(self, *folders: str) -> None:
        """Nothing to make: a key needs no folder."""

    def sync(self) -> None:
        """What a server has answered for is durable."""

    @contextlib.contextmanager
    def hold(self, *folders: str) -> Iterator[None]:
        yield

    def lock(self) -> bool | None:
        return None

    def let_go(self) -> None: ...

    def entries(self, folder: str, *, after: str = "") -> list[str]:
        keys = self._bucket.keys(f"{folder}/", after=f"{folder}/{after}" if after else None)
        return [key.removeprefix(f"{folder}/") for key in keys]

    def read(self, path: str, limit: int) -> bytes:
        return read_small(self._bucket, path, limit)

    def create(self, path: str, data: bytes) -> None:
        create_once(self._bucket, path, data, self._patience, look_first=not self.is_exclusive)

    create_whole = create

    def replace(self, path: str, data: bytes) -> None:
        self._bucket.upload(path, iter([data]), size=len(data), part_bytes=len(data))

    def is_copy_of(self, other: str, uuid: str) -> bool:
        return False

    def set_aside(self, path: str, suffix: str) -> None:
        raise InternalError(f"{path} in {self.where} cannot be renamed")

    # ---- looking

    def listing(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for entry in self.entries(CKPT):
            name, slash, inside = entry.partition("/")
            if slash and parse_checkpoint_name(name):
                found.setdefault(name, []).append(inside)
        # A commit that may still arrive is nobody's litter.
        return {
            name: inside
            for name, inside in found.items()
            if name not in self._in_doubt or is_committed(inside)
        }

    def copies(self) -> list[str]:
        return []

    def state(self, name: str) -> State | None:
        inside = self._inside(name)
        if is_committed(inside):
            return "committed"
        # An object is whole or not there: any that a dead writer left can be gone on with.
        return "copy" if inside else None

    def _inside(self, name: str) -> list[str]:
        return self.entries(f"{CKPT}/{name}")

    def held(self, name: str) -> dict[str, int]:
        files = [file for file in self._inside(name) if is_held_name(file)]
        states = {file: self._bucket.look(_key(name, file)) for file in files}
        return {file: state.size for file, state in states.items() if state is not None}

    def open(self, name: str, file: str) -> ObjectFile:
        return ObjectFile(self._bucket, _key(name, file))

    @contextlib.contextmanager
    def descriptor(self, name: str, file: str) -> Iterator[int | None]:
        yield None

    def free_bytes(self) -> int | None:
        """Buckets have no size to ask for; a quota shows when it is hit."""
        return None

    # ---- writing

    def begin(self, name: str) -> None:
        if self._inside(name):
            raise KeyTaken(f"{name} in {self.where} exists", hint="names are never reused")
        self._mark(name)

    def begin_copy(self, name: str) -> None:
        self._mark(name)

    def _mark(self, name: str) -> None:
        # Makes it visible to sweepers: parts of an upload are not, until all are there.
        self.create(_key(name, PART), seal({"format": 1, "token": new_token()}))

    def write(self, name: str, source: ImageSource) -> FileRecord:
        return upload_image(self._bucket, _key(name, source.name), source, self._patience)

    def add(
        self, name: str, source: ImageSource, expect: FileRecord | None, *, replace: bool = False
    ) -> FileRecord:
        # An upload takes the place of what is there at once, when all of it has come.
        key = _key(name, source.name)
        return upload_image(self._bucket, key, source, self._patience, expect=expect, replace=replace)

    def commit(self, name: str, manifest: bytes, check: Callable[[], None]) -> None:
        self.create(_key(name, SECOND), manifest)
        check()
        # From here on the request may arrive at any time, even after we have given up on it.
        self._in_doubt.add(name)
        self.create(_key(name, MANIFEST), manifest)
        self._in_doubt.discard(name)
        with contextlib.suppress(StoreError):
            self._bucket.delete([_key(name, PART)])

    # ---- removing

    def bury(self, name: str) -> None:
        if MANIFEST not in self._inside(name):
            raise StoreNotFound(f"there is no checkpoint {name} in {self.where}")
        # Uncommit before the first byte goes: a crash in between must not leave a manifest that vouches for
        # missing data.
        self._mark_dead(name)

    def _mark_dead(self, name: str) -> None:
        with contextlib.suppress(KeyTaken):
            self.create(_key(name, DEAD), seal({"format": 1, "token": new_token()}))

    def clear(self, name: str) -> None:
        """Manifest first, tombstone last. The tombstone stays while anything foreign does, or any doubt."""
        inside = self._inside(name)
        if is_committed(inside):
            raise InternalError(f"{name} in {self.where} is committed and cannot be abandoned")
        if name in self._in_doubt and DEAD not in inside:
            # A commit that is still under way must not vouch for what is deleted now: the tombstone beats it.
            self._mark_dead(name)
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


def _key(name: str, entry: str) -> str:
    return f"{CKPT}/{name}/{entry}"
