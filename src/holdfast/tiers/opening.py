"""From the words of a run to its tiers: the stores themselves, for whoever restores, copies or checks."""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.clock import SystemClock
from holdfast.errors import SetupError, StoreError, StoreNotFound
from holdfast.stores.locations import node_store, open_store
from holdfast.stores.posix import PosixIO
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.memory import MemoryTier
from holdfast.tiers.memory_folder import memory_folders
from holdfast.tiers.named_tier import NamedTier
from holdfast.tiers.node_places import nodes_here, open_node_store
from holdfast.tiers.tier_list import recall_tiers
from holdfast.tiers.words import HOME, MEMORY, Tier


def open_tier(tier: Tier, run: str, uuid: str) -> CheckpointStore:
    """The store of one tier that is not memory. Nothing is written; SetupError if it is another run's."""
    if tier.kind == "home":
        return CheckpointStore(run)
    if tier.kind == "objects":
        store = open_store(tier.location, uuid=uuid)
    elif tier.is_node_local:
        store = node_store(tier.path, uuid=uuid, io=PosixIO(own=True), makes_room=True)
    else:
        store = CheckpointStore(tier.path, uuid=uuid)
    require_same_run(store, uuid)
    return store


def require_same_run(store: CheckpointStore, uuid: str) -> None:
    """Two runs in one folder would prune each other's checkpoints."""
    try:
        # A node's store answers with what it was told; what lies in its folder is what counts.
        there = store.identity.uuid
    except StoreNotFound:
        return
    if there != uuid:
        raise SetupError(
            f"the tier {store.where} belongs to another run ({there}, not {uuid})",
            hint="give each run a folder of its own there",
        )


def memory_tiers(uuid: str, *, root: str | None = None) -> list[NamedTier]:
    """What this run's processes left in the memory of this node, to read."""
    folders = [one for one in memory_folders(root, wall=SystemClock().wall()) if one.uuid == uuid]
    return [NamedTier(MEMORY, MemoryTier(uuid, root=root)) for _ in folders]


def readable_tiers(
    run: str | os.PathLike[str], *, more: Sequence[NamedTier] = (), shm: str | None = None
) -> list[NamedTier]:
    """Every tier that the run at `run` has or had, as this node sees them, nearest first.

    `more` are tiers that only the caller can reach, such as the stores of other nodes; they come after this
    node's own.
    """
    home = os.path.abspath(os.fspath(run))
    uuid = CheckpointStore(home).uuid
    listed = recall_tiers(home)
    known = (*listed.now, *listed.former)
    # Memory only where the run has recorded that it keeps checkpoints there.
    near = memory_tiers(uuid, root=shm) if any(tier.kind == "memory" for tier in known) else []
    for tier in known:
        if tier.is_node_local:
            near += _on_this_node(tier, home, uuid, is_former=tier in listed.former)
    return [*near, *more, *lasting_tiers(home, uuid)]


def lasting_tiers(home: str, uuid: str) -> list[NamedTier]:
    """Those that are not local to a node."""
    listed, far = recall_tiers(home), list[NamedTier]()
    for tier in (*listed.now, *listed.former):
        if not tier.is_node_local:
            try:
                far.append(NamedTier(tier.location, open_tier(tier, home, uuid)))
            except StoreError:
                if tier in listed.now:
                    raise
    if all(tier.store.where != home for tier in far):
        # Its own folder is where a run without other tiers has everything.
        far.append(NamedTier(HOME, CheckpointStore(home)))
    return far


def _on_this_node(tier: Tier, home: str, uuid: str, *, is_former: bool) -> list[NamedTier]:
    """What a single process keeps in its node's folder, and what each node of several ranks does."""
    found = []
    try:
        if tier.kind != "memory":
            found.append(NamedTier(tier.location, open_tier(tier, home, uuid), partial=True))
        for node in nodes_here(tier, uuid):
            store = open_node_store(tier, uuid, node)
            found.append(NamedTier(f"{tier.location} of {node}", store, partial=True))
    except StoreError:
        if not is_former:
            raise
    return found
