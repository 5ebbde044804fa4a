"""Last step of a supervisor: copies checkpoints that only this machine holds to the lasting tier.

It looks where dead trainers leave them: in the memory tier, in a tier on this machine's own disk, and in what
each node of several ranks keeps, in memory or on disk.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from holdfast.cli.render import clean
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError
from holdfast.format.manifest import parse_manifest
from holdfast.keeper.node_caches import give_memory_back, node_caches
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.ladder import Ladder
from holdfast.tiers.memory_folder import default_root, memory_folders, remove_folder
from holdfast.tiers.named_tier import NamedTier
from holdfast.tiers.node_ranks import nodes_of_ranks
from holdfast.tiers.opening import readable_tiers
from holdfast.tiers.scavenge import scavenge


def rescue(run: str) -> dict[str, object] | None:
    """Commit to the run's first lasting tier what is newer here, then give the memory back.

    None where there is nothing to do. What could not be saved stays where it is.
    """
    left = memory_folders(wall=SystemClock().wall())
    if not os.path.isdir(run) and all(one.run != os.path.abspath(run) for one in left):
        return None  # No run was ever opened there.
    try:
        tiers = readable_tiers(run)
        lasting = next(tier for tier in tiers if tier.must_answer)
        near = [tier for tier in tiers if not tier.must_answer]
        newest = max(Ladder(near).names(), default="") if near else ""
        only_here = newest > max(lasting.store.names(), default="")
        holds_memory = any(tier.store.where.startswith(default_root()) for tier in near)
        if not only_here and not holds_memory:
            return None
        if elsewhere := _nodes_elsewhere(run, newest, near):
            return _spread(newest, elsewhere) if only_here else None
        # Also where only memory is to be given back: it refuses while somebody still writes there.
        done = scavenge(run)
        if not done.failed:
            _give_back(run)
    except HoldfastError as error:
        return _told((), [str(error)], "")
    return _told(done.saved, [f"{name}: {why}" for name, why in done.failed], done.tier)


def _nodes_elsewhere(run: str, name: str, near: Sequence[NamedTier]) -> list[str]:
    """The nodes that saved this checkpoint and are not on this machine."""
    if not name:
        return []
    nodes = set(nodes_of_ranks(parse_manifest(Ladder(near).manifest(name))) or ())
    return sorted(nodes - {node for node, store in node_caches(run).items() if name in store.names()})


def _spread(name: str, nodes: Sequence[str]) -> dict[str, object]:
    # Scavenging claims the run. Nodes that still train, under supervisors of their own, would be fenced off,
    # for a checkpoint of which this machine has a part.
    where = ", ".join(nodes)
    return _told((), [f"{name} is on {where} as well; start the run again on the same nodes"], "")


def _give_back(run: str) -> None:
    uuid = CheckpointStore(run).uuid
    for folder in memory_folders(wall=SystemClock().wall()):
        if folder.uuid == uuid:
            remove_folder(folder)
    give_memory_back(run)


def _told(saved: Sequence[str], failed: Sequence[str], tier: str) -> dict[str, object]:
    for name in saved:
        print(f"holdfast: {name} was only on this machine; it is in {clean(tier)} now", file=sys.stderr)
    for why in failed:
        print(f"holdfast: what only this machine holds stays there: {clean(why)}", file=sys.stderr)
    return {"saved": list(saved), "failed": list(failed)}
