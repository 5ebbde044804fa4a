"""STORE.json: which store this is. Made once, never edited.

A folder that somebody copied, to try something else from here on, is a run of its own. With the same
identity it would take what the other keeps in memory, on nodes and in buckets for its own, and each would go
on from the other's states. A folder that was moved is the same run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import CorruptCheckpoint, StoreError, StoreNotFound
from holdfast.format.sealed import seal, unseal
from holdfast.stores.base import KeyTaken
from holdfast.stores.place import Place

RECORD = "STORE.json"
COPIED = ".copied"
FORMAT = 1
MAX_BYTES = 64 << 10
log = logging.getLogger("holdfast")
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


@dataclass(frozen=True)
class Identity:
    """`ancestors` are the stores that this one is a copy of, oldest first: what they had is its own."""

    uuid: str
    ancestors: tuple[str, ...] = ()


def make_identity(place: Place, wanted: str | None, ancestors: Sequence[str] = ()) -> None:
    """Write the record unless there is one. Its name is durable once the place is synced."""
    with contextlib.suppress(StoreNotFound, CorruptCheckpoint):
        place.read(RECORD, MAX_BYTES)
        return
    said = {"format": FORMAT, "uuid": wanted or str(uuid.uuid4()), "ancestors": list(ancestors)}
    # Another claimant may be quicker; both will then read the same one. Complete before it has its name: a
    # torn identity would lock the store's own writer out for ever.
    with contextlib.suppress(KeyTaken):
        place.create_whole(RECORD, seal(said))


def read_identity(place: Place) -> Identity:
    return parse_identity(place.read(RECORD, MAX_BYTES), place.where)


def parse_identity(data: bytes, where: str) -> Identity:
    try:
        record = unseal(data)
    except CorruptCheckpoint as error:
        raise StoreError(
            f"{RECORD} in {where} is damaged: {error.message}",
            hint="its checkpoints can still be read; to write, move the damaged file away",
        ) from error
    uuid_text = record.get("uuid")
    if record.get("format") != FORMAT or not isinstance(uuid_text, str) or not _UUID.fullmatch(uuid_text):
        raise StoreError(
            f"{RECORD} in {where} is not of format {FORMAT}", hint="a newer holdfast may have made it"
        )
    ancestors = record.get("ancestors", [])
    known = ancestors if isinstance(ancestors, list) else []
    return Identity(uuid_text, tuple(one for one in known if isinstance(one, str)))


def become_its_own(place: Place, made_at: str) -> None:
    """Give a copy a new identity. `made_at` is where the newest claim was made: here, or where it was copied
    from. Durable once the place is synced."""
    if made_at == place.where:
        return
    before = read_identity(place)
    if not place.is_copy_of(made_at, before.uuid):
        return
    log.warning(
        "holdfast: %s is a copy of %s, which is still there: from now on it is a run of its own. It does not "
        "go on from what the other one has in memory, on nodes or in other tiers", place.where, made_at,
    )  # fmt: skip
    # Not removed: what is gone could be taken for a folder that was lost (see tiers/lost_home.py).
    place.set_aside(RECORD, COPIED)
    make_identity(place, None, (*before.ancestors, before.uuid))


def is_marked_as_copy(where: str) -> bool:
    """Whether a copy was about to become its own; its identity may be missing for now."""
    try:
        return any(name.startswith(RECORD) and name.endswith(COPIED) for name in os.listdir(where))
    except OSError:
        return False
