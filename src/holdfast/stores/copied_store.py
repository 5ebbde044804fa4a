"""A folder that somebody copied, to try something else from here on, is a run of its own.

With the same identity it would take what the other keeps in memory, on nodes and in buckets for its own, and
each would go on from the other's states. A folder that was moved is the same run.
"""

from __future__ import annotations

import logging
import os

from holdfast.errors import HoldfastError
from holdfast.stores.claims import Claim
from holdfast.stores.identity import RECORD, make_identity, read_identity
from holdfast.stores.io import StoreIO

log = logging.getLogger("holdfast")
COPIED = ".copied"


def become_its_own(io: StoreIO, root: int, where: str, last: Claim | None) -> None:
    """Give a copy a new identity. `last` is the newest claim, made here or where it was copied from. Durable
    once `root` is fsynced."""
    if last is None or last.place is None or not _is_copy_of(io, last.place, root, where):
        return
    log.warning(
        "holdfast: %s is a copy of %s, which is still there: from now on it is a run of its own. It does not "
        "go on from what the other one has in memory, on nodes or in other tiers", where, last.place,
    )  # fmt: skip
    # Not unlinked: what is gone could be taken for a folder that was lost (see tiers/lost_home.py).
    before = read_identity(io, root, where)
    io.rename(root, RECORD, f"{RECORD}.{os.urandom(4).hex()}{COPIED}")
    make_identity(io, root, None, (*before.ancestors, before.uuid))


def is_marked_as_copy(where: str) -> bool:
    """Whether a copy was about to become its own; its identity may be missing for now."""
    try:
        return any(name.startswith(RECORD) and name.endswith(COPIED) for name in os.listdir(where))
    except OSError:
        return False


def _is_copy_of(io: StoreIO, place: str, root: int, where: str) -> bool:
    if place == where or _is_same_folder(place, where):
        return False
    try:
        other = io.open_root(place, create=False)
        try:
            return read_identity(io, other, place).uuid == read_identity(io, root, where).uuid
        finally:
            io.close(other)
    except (OSError, HoldfastError):
        return False  # Not there any more, or not to be seen from here: this one was moved.


def _is_same_folder(place: str, where: str) -> bool:
    # One file system mounted twice may have two device numbers. Not by a file: copies may be hard links.
    try:
        return os.stat(place).st_ino == os.stat(where).st_ino
    except OSError:
        return False
