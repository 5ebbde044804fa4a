"""Checkpoints in a place, to read: which are committed, what their manifests say, their files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from holdfast.errors import CorruptCheckpoint, StoreError, StoreNotFound
from holdfast.format.names import MANIFEST, SECOND, is_committed, is_held_name, parse_checkpoint_name
from holdfast.format.sealed import MAX_SEALED_BYTES, check_seal
from holdfast.stores.base import StoredFile
from holdfast.stores.claims import Claim, claimed_epochs, read_claim
from holdfast.stores.identity import Identity, read_identity
from holdfast.stores.place import CKPT, Place


class StoredCheckpoints:
    """Writes nothing and takes no lock."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.where = place.where
        self._known: Identity | None = None

    @property
    def uuid(self) -> str:
        return self.identity.uuid

    @property
    def identity(self) -> Identity:
        """What lies in the place, whatever this store was told."""
        if self._known is None:
            self._known = read_identity(self._place)
        return self._known

    @property
    def ancestors(self) -> tuple[str, ...]:
        """The uuids of the stores that this one is a copy of: what was copied with it is its own as well."""
        return self.identity.ancestors

    def claims(self) -> list[Claim]:
        """Who has written here, oldest first."""
        try:
            return [read_claim(self._place, epoch) for epoch in claimed_epochs(self._place)]
        except StoreNotFound:
            return []

    def names(self) -> list[str]:
        return [name for name, inside in self._place.listing().items() if is_committed(inside)]

    def manifest(self, name: str) -> bytes:
        _require_name(name)
        try:
            return self._read_sealed(name, MANIFEST)
        except StoreNotFound:
            # Then the second copy means nothing: it exists before the commit and for a moment after the
            # tombstone.
            raise
        except (CorruptCheckpoint, StoreError) as first:
            if isinstance(first, StoreError) and not self._place.reads_fail_alone:
                raise
            # Any other error of the second copy proves nothing: it may be whole.
            with contextlib.suppress(CorruptCheckpoint, StoreNotFound):
                return self._read_sealed(name, SECOND)
            if isinstance(first, StoreError):
                raise
            raise CorruptCheckpoint(f"{MANIFEST} of {name} in {self.where}: {first.message}") from first

    def _read_sealed(self, name: str, record: str) -> bytes:
        data = self._place.read(f"{CKPT}/{name}/{record}", MAX_SEALED_BYTES)
        check_seal(data)
        return data

    def open(self, name: str, file: str) -> StoredFile:
        _require_name(name, file)
        return self._place.open(name, file)

    def held(self, name: str) -> dict[str, int]:
        _require_name(name)
        return self._place.held(name)

    def descriptor(self, name: str, file: str) -> contextlib.AbstractContextManager[int | None]:
        """The file to send from, through the page cache; None where that is not possible."""
        _require_name(name, file)
        return self._place.descriptor(name, file)

    def damaged_records(self, name: str, right: bytes) -> list[str]:
        return [f"{record} of {name} in {self.where} is damaged" for record in self._damaged(name, right)]

    def _damaged(self, name: str, right: bytes) -> Iterator[str]:
        for record in (SECOND, MANIFEST):
            try:
                found = self._place.read(f"{CKPT}/{name}/{record}", MAX_SEALED_BYTES)
            except (CorruptCheckpoint, StoreError):
                found = b""
            if found != right:
                yield record


def _require_name(name: str, file: str | None = None) -> None:
    if parse_checkpoint_name(name) is None:
        raise StoreNotFound(f"{name!r} is not the name of a checkpoint")
    if file is not None and not is_held_name(file):
        raise StoreNotFound(f"{name!r}/{file!r} is not a file of a checkpoint")
