"""What the operating system's errors mean for a store, in words that say where and what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import StoreDenied, StoreError, StoreFull, StoreNotFound, StoreUnavailable
from holdfast.stores.base import KeyTaken

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_MISSING = {errno.ENOENT, errno.ENOTDIR}


def store_error(error: OSError, doing: str, where: str) -> StoreError:
    """The StoreError that `error` amounts to. `doing` completes "cannot …"."""
    text = f"cannot {doing} in {where}: {error.strerror or error}"
    if error.errno in _FULL:
        return StoreFull(text, hint="free space or raise the quota, or keep fewer checkpoints")
    if error.errno in _DENIED:
        return StoreDenied(text, hint="check the owner and mode of the directory and how it is mounted")
    if error.errno in _MISSING:
        return StoreNotFound(text, hint="check that the path exists and that its file system is mounted")
    if error.errno == errno.EEXIST:
        return KeyTaken(text, hint="names are never reused: another process may be writing here")
    if error.errno == errno.ELOOP:
        return StoreDenied(text, hint="only regular files are read: remove the link, pipe or device there")
    return StoreUnavailable(
        text, hint="the storage may be failing or away for a moment; look at the system log"
    )


@contextmanager
def store_errors(doing: str, where: str) -> Iterator[None]:
    """Turn any OSError inside into the StoreError it amounts to."""
    try:
        yield
    except OSError as error:
        raise store_error(error, doing, where) from error
