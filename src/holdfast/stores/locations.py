"""From what a user writes to a store: a path, or the address of a bucket."""

from __future__ import annotations

import os
import re

from holdfast.clock import Clock
from holdfast.errors import SetupError
from holdfast.stores.directory import DirectoryStore
from holdfast.stores.objects import ObjectStore

SCHEMES = ("s3", "gs", "az")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://", re.ASCII)


def is_bucket(location: str | os.PathLike[str]) -> bool:
    """Whether this is the address of a bucket and not a path. Asks nobody."""
    return _SCHEME.match(os.fspath(location)) is not None


def open_store(
    location: str | os.PathLike[str], *, clock: Clock | None = None, uuid: str | None = None
) -> DirectoryStore | ObjectStore:
    """The store at "s3://bucket/path", "gs://bucket/path", "az://container/path" or in a directory.

    Nothing is read or written yet; `uuid` is the identity that a new store is given. Credentials and
    endpoint of a bucket come from the environment.
    """
    text = os.fspath(location)
    match = _SCHEME.match(text)
    if match is None:
        return DirectoryStore(text, clock=clock, uuid=uuid)
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
    return ObjectStore(ObstoreBucket(text), clock=clock, uuid=uuid)
