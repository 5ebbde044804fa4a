"""STORE.json of a bucket: which store this is. Made once, never edited."""

from __future__ import annotations

import uuid

from holdfast.format.sealed import seal
from holdfast.stores.bucket import Bucket, KeyTaken
from holdfast.stores.identity import FORMAT, MAX_BYTES, RECORD, parse_identity
from holdfast.stores.object_writes import create_once, read_small
from holdfast.stores.patience import Patience


def make_identity(bucket: Bucket, wanted: str | None, patience: Patience) -> None:
    """Write the record unless there is one."""
    if bucket.look(RECORD) is not None:
        return
    try:
        create_once(bucket, RECORD, seal({"format": FORMAT, "uuid": wanted or str(uuid.uuid4())}), patience)
    except KeyTaken:
        # Another claimant was quicker; both will now read the same one.
        return


def read_identity(bucket: Bucket) -> str:
    return parse_identity(lambda: read_small(bucket, RECORD, MAX_BYTES), bucket.where).uuid
