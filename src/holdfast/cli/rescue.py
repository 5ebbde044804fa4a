"""What a supervisor does last: checkpoints that dead trainers left in this node's memory are made to last."""

from __future__ import annotations

import sys

from holdfast.cli.terminal import clean
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError
from holdfast.stores.directory import DirectoryStore
from holdfast.tiers.memory_folder import MemoryFolder, memory_folders, remove_folder
from holdfast.tiers.scavenge import scavenge


def rescue(run: str) -> dict[str, object] | None:
    """Commit to the run's lasting tier what is newer in memory, then give the memory back.

    None where nothing of this run is in memory. What could not be saved stays there.
    """
    try:
        uuid = DirectoryStore(run).uuid
        left = [one for one in memory_folders(wall=SystemClock().wall()) if one.uuid == uuid]
        if not left:
            return None
        done = scavenge(run)
    except HoldfastError as error:
        print(f"holdfast: what is left in memory stays there: {clean(str(error))}", file=sys.stderr)
        return {"saved": [], "failed": [str(error)]}
    for name in done.saved:
        print(f"holdfast: {name} was only in memory; it is in {clean(done.tier)} now", file=sys.stderr)
    for name, why in done.failed:
        print(f"holdfast: {name} stays in memory: {clean(why)}", file=sys.stderr)
    if not done.failed:
        _give_back(left)
    return {"saved": list(done.saved), "failed": [f"{name}: {why}" for name, why in done.failed]}


def _give_back(folders: list[MemoryFolder]) -> None:
    for folder in folders:
        try:
            remove_folder(folder)
        except HoldfastError as error:
            print(f"holdfast: {clean(str(error))}", file=sys.stderr)
