"""What a node's own store keeps: the newest few that all nodes committed, and what somebody still needs."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

from holdfast.errors import InternalError, StoreError
from holdfast.format.names import parse_checkpoint_name
from holdfast.stores.store import CheckpointStore


def tidy(
    stores: Sequence[CheckpointStore], known: Collection[str], keep: int, spare: Collection[str]
) -> list[str]:
    """Remove what is older than the `keep` newest of `known` and not in `spare`; the names that went.

    `known` are checkpoints that every node committed, or that every rank has restored. Only they count: one
    that this node settled and another did not must never push a good one out. So nothing goes before there
    are `keep` of them, and nothing newer than they are. Nor does what is further in training than the newest:
    it was passed over, perhaps because a node was away.
    """
    newest = sorted(known, reverse=True)[:keep]
    if len(newest) < keep:
        return []
    kept = {*newest, *spare}
    reached = _step(newest[0])
    gone = []
    for store in stores:
        # An old one too many hurts nobody; the next commit tries again.
        with contextlib.suppress(StoreError, InternalError):
            for name in store.leftovers():
                if name < newest[0] and name not in kept:
                    store.abandon(name)
            for name in store.names():
                if name < newest[0] and name not in kept and _step(name) <= reached:
                    store.retire(name)
                    gone.append(name)
    return gone


def _step(name: str) -> int:
    parsed = parse_checkpoint_name(name)
    return parsed.step if parsed is not None else 0
