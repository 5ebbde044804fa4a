"""What this machine keeps of a run's checkpoints, as its workers left it: which stores there are, by node."""

from __future__ import annotations

import contextlib
import os
import shutil

from holdfast.errors import HoldfastError, StoreNotFound
from holdfast.stores.os_errors import store_errors
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.node_places import node_folder, nodes_here, open_node_store
from holdfast.tiers.protect_record import is_record_name
from holdfast.tiers.tier_list import recall_tiers
from holdfast.tiers.words import Tier


def has_node_caches(run: str) -> bool:
    return bool(_local_tiers(run))


def node_caches(run: str) -> dict[str, CheckpointStore]:
    """By logical node. A machine may hold more than one: it was another node once, in this job or before."""
    uuid = CheckpointStore(run).uuid
    found: dict[str, CheckpointStore] = {}
    for tier in _local_tiers(run):
        for node in nodes_here(tier, uuid):
            found.setdefault(node, open_node_store(tier, uuid, node))
    return found


def newest_in_caches(run: str) -> str | None:
    """What restarting would find here. None also where that cannot be told: it only measures progress."""
    try:
        names = [name for store in node_caches(run).values() for name in store.names()]
    except HoldfastError:
        return None
    return max(names, default=None)


def is_protected_here(run: str, name: str) -> bool:
    """Whether this node has done its share to protect it: the record is written last."""
    with contextlib.suppress(HoldfastError):
        for store in node_caches(run).values():
            # What the machine keeps of another node may be older.
            with contextlib.suppress(StoreNotFound):
                if any(is_record_name(file) for file in store.held(name)):
                    return True
    return False


def give_memory_back(run: str) -> None:
    """Nobody will restart here: gigabytes left in a node's memory would hurt the next job."""
    uuid = CheckpointStore(run).uuid
    for tier in _local_tiers(run):
        if tier.kind == "memory":
            for node in nodes_here(tier, uuid):
                folder = node_folder(tier, uuid, node)
                with store_errors("give memory back", folder):
                    shutil.rmtree(folder)
                    if not os.listdir(os.path.dirname(folder)):
                        os.rmdir(os.path.dirname(folder))


def _local_tiers(run: str) -> list[Tier]:
    listed = recall_tiers(run)
    return [tier for tier in (*listed.now, *listed.former) if tier.is_node_local]
