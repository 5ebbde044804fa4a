"""Which failures prove that a checkpoint is no good: only they may make a run go on from an older one.

Bytes that were read and do not match, a file that is too short or not there: proven. A read error, a stale
handle, no descriptor left, a server that is away: they say nothing about the bytes. Those are asked again for
a while and then stop the restore: a run that stepped back would prune the whole checkpoint it passed over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from holdfast.errors import CorruptCheckpoint, HoldfastError, StoreError, StoreNotFound, StoreUnavailable
from holdfast.stores.patience import Patience

PROVEN = (CorruptCheckpoint, StoreNotFound)
READING = Patience(attempts=6, first_pause=0.25, longest_pause=4.0)
T = TypeVar("T")
log = logging.getLogger("holdfast")


def is_doubtful(error: HoldfastError | None) -> bool:
    """Whether asking again may give another answer."""
    return isinstance(error, StoreError) and not isinstance(error, PROVEN)


def persist(call: Callable[[], T], patience: Patience = READING) -> T:
    """What `call` gives, asked again while it fails without proving anything."""
    last: StoreError | None = None
    for _ in patience.tries():
        try:
            return call()
        except PROVEN:
            raise
        except StoreError as error:
            if last is None:
                log.warning("holdfast: %s; trying again", error.message)
            last = error
    assert last is not None
    raise last


def in_doubt(name: object, where: str, error: StoreError) -> StoreUnavailable:
    """What stops a restore. `name` may be whole, so nothing older takes its place."""
    return StoreUnavailable(
        f"cannot tell whether checkpoint {name} in {where} is whole: {error.message}",
        hint="nothing older is restored in its place, and nothing was deleted; start again when the storage "
        "answers. To go on without it, move its folder out of ckpt/",
    )
