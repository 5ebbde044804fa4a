"""Memory that dead runs still hold on this machine: found soon, and given back where nothing is lost by it.

A job that was killed leaves its checkpoints in /dev/shm, so that it can go on from there. If it goes on
elsewhere, or never, they stay until somebody looks.
"""

from __future__ import annotations

import contextlib
import os
import shutil

from holdfast.errors import HoldfastError
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.memory import MemoryTier
from holdfast.tiers.memory_folder import (
    MemoryFolder,
    default_root,
    memory_folders,
    remove_folder,
    stale_folders,
    weigh,
)

# A restart on the same machine is under way within minutes, if anybody sees to it.
FORGOTTEN_SECONDS = 600.0
NODE_CACHES = "node-caches"


def forgotten(root: str | None = None, *, wall: float) -> list[MemoryFolder]:
    """Folders of this user whose run does not live, for all that can be known, and has not written for a
    while; those of ranks that share a node included."""
    root = root or default_root()
    quiet = stale_folders(root, wall=wall, older_than=FORGOTTEN_SECONDS)
    caches = os.path.join(root, NODE_CACHES)
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(caches)):
            path = os.path.join(caches, name)
            if os.path.isdir(path) and not os.path.islink(path):
                used, newest = weigh(path)
                # Nobody signs these: a node that trains writes there all the time.
                if wall - newest >= 10 * FORGOTTEN_SECONDS:
                    quiet.append(MemoryFolder(path, name, None, None, wall - newest, used))
    return quiet


def give_back_what_lasts(mine: str, root: str | None = None, *, wall: float) -> list[str]:
    """Remove the memory of other runs that provably do not live and whose own folder has all that it holds.
    Whatever is in doubt stays. The paths that went."""
    gone = []
    for folder in memory_folders(root, wall=wall):
        if folder.uuid == mine or folder.alive is not False or not folder.run:
            continue
        with contextlib.suppress(HoldfastError, OSError, shutil.Error):
            held = MemoryTier(folder.uuid, root=root).names()
            home = CheckpointStore(folder.run)
            if home.uuid == folder.uuid and set(held) <= set(home.names()):
                remove_folder(folder)
                gone.append(folder.path)
    return gone
