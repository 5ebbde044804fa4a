"""Which logical node each rank of a checkpoint was on: in the manifest's environment, as runs of ranks.

"nodes": [["node000", 8], ["node001", 8]]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from holdfast.errors import CorruptCheckpoint
from holdfast.format.manifest import Manifest

_KEY = "nodes"


def with_nodes(environment: Mapping[str, Any], node_of_rank: Sequence[str]) -> dict[str, Any]:
    runs = [[node, len(list(ranks))] for node, ranks in groupby(node_of_rank)]
    return {**environment, _KEY: runs}


def nodes_of_ranks(manifest: Manifest) -> tuple[str, ...] | None:
    """By rank; None for a checkpoint that no nodes kept."""
    runs = manifest.environment.get(_KEY)
    if runs is None:
        return None
    try:
        found = tuple(node for node, count in runs for _ in range(min(count, manifest.world + 1)))
    except (TypeError, ValueError) as error:
        raise CorruptCheckpoint(f"{manifest.name} does not say which ranks were on which nodes") from error
    if len(found) != manifest.world or not all(isinstance(node, str) for node in found):
        raise CorruptCheckpoint(f"{manifest.name} names nodes for {len(found)} of {manifest.world} ranks")
    return found
