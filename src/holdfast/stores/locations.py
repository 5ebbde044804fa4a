"""The stores there are: in a folder, in a bucket, on a node; and from what a user writes to one."""

from __future__ import annotations

import os
import re
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import SetupError
from holdfast.stores.base import BUCKET, NODE_DISK, StoreProperties
from holdfast.stores.bucket import Bucket
from holdfast.stores.bucket_place import BucketPlace
from holdfast.stores.io import StoreIO
from holdfast.stores.patience import Patience
from holdfast.stores.store import CheckpointStore

SCHEMES = ("s3", "gs", "az")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://", re.ASCII)


def is_bucket(location: str | os.PathLike[str]) -> bool:
    """Whether this is the address of a bucket and not a path. Asks nobody."""
    return _SCHEME.match(os.fspath(location)) is not None


def bucket_store(bucket: Bucket, *, patience: Patience | None = None, **more: Any) -> CheckpointStore:
    """The store in a bucket; `more` are settings of CheckpointStore."""
    return CheckpointStore(BucketPlace(bucket, patience), **{"properties": BUCKET, **more})


def open_store(
    location: str | os.PathLike[str], *, clock: Clock | None = None, uuid: str | None = None
) -> CheckpointStore:
    """The store at "s3://bucket/path", "gs://bucket/path", "az://container/path" or in a directory.

    Nothing is read or written yet; `uuid` is the identity that a new store is given. Credentials and
    endpoint of a bucket come from the environment.
    """
    text = os.fspath(location)
    match = _SCHEME.match(text)
    if match is None:
        return CheckpointStore(text, clock=clock, uuid=uuid)
    if match[1] not in SCHEMES:
        raise SetupError(
            f"{text} is not a place for checkpoints",
            hint="use a path, s3://bucket/path, gs://bucket/path or az://container/path",
        )
    try:
        from holdfast.stores.obstore_bucket import ObstoreBucket
    except ModuleNotFoundError as error:
        raise SetupError(
            f"{text} needs the library {error.name}", hint="pip install 'holdfast[objects]'"
        ) from error
    return bucket_store(ObstoreBucket(text), clock=clock, uuid=uuid)


def node_store(
    path: str | os.PathLike[str],
    *,
    io: StoreIO | None = None,
    uuid: str | None = None,
    spare_bytes: int = 16 << 20,
    threads: int = 2,
    makes_room: bool = False,
    properties: StoreProperties = NODE_DISK,
) -> CheckpointStore:
    """The store of one node: its own ranks' files, and beside them what it keeps for other nodes.

    >>> node = node_store("/local/nvme/run")
    >>> node.write(name, source, expect=record)     # into a committed checkpoint, or into one that is to be
    >>> node.publish(name, manifest)
    """
    return CheckpointStore(
        path, io=io, properties=properties, uuid=uuid, spare_bytes=spare_bytes, threads=threads,
        one_writer=False, makes_room=makes_room,
    )  # fmt: skip
