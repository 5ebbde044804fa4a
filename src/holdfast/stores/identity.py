"""STORE.json: which store this is. Made once, never edited."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.errors import CorruptCheckpoint, StoreError
from holdfast.format.sealed import seal, unseal
from holdfast.stores.durable_write import write_small
from holdfast.stores.io import StoreIO
from holdfast.stores.small_read import read_small

RECORD = "STORE.json"
FORMAT = 1
MAX_BYTES = 64 << 10
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


@dataclass(frozen=True)
class Identity:
    """`ancestors` are the stores that this one is a copy of, oldest first: what they had is its own."""

    uuid: str
    ancestors: tuple[str, ...] = ()


def make_identity(io: StoreIO, root: int, wanted: str | None, ancestors: Sequence[str] = ()) -> None:
    """Write the record unless there is one. Its name is durable once `root` is fsynced."""
    if io.kind(root, RECORD) is not None:
        return
    # Complete before it has its name: a torn identity would lock the store's own writer out for ever.
    part = f"{RECORD}.{os.urandom(4).hex()}.part"
    said = {"format": FORMAT, "uuid": wanted or str(uuid.uuid4()), "ancestors": list(ancestors)}
    write_small(io, root, part, seal(said))
    try:
        io.rename(root, part, RECORD)
    except FileExistsError:
        io.unlink(root, part)


def read_identity(io: StoreIO, root: int, where: str) -> Identity:
    return parse_identity(lambda: read_small(io, root, RECORD, MAX_BYTES), where)


def parse_identity(read: Callable[[], bytes], where: str) -> Identity:
    """What the record says that `read` gives."""
    try:
        record = unseal(read())
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
