"""A run's own folder that was lost is made again as the same run, if an outer tier knows it.

Without its name the copies would belong to nobody; with too low a writer epoch, what is saved next would not
be the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import SetupError, StoreNotFound
from holdfast.format.names import parse_checkpoint_name
from holdfast.stores.base import Store
from holdfast.stores.identity import is_marked_as_copy
from holdfast.stores.locations import open_store
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.words import Tier


@dataclass(frozen=True)
class Known:
    """What must be kept when the folder is claimed: `CheckpointStore(uuid=)` and `claim(at_least=)`."""

    uuid: str | None = None
    at_least: int = 1


def known_elsewhere(folder: str, tiers: Sequence[Tier]) -> Known:
    """What the lasting tiers know of the run in `folder`. Nothing, where the folder itself is there."""
    home = CheckpointStore(folder)
    lasting = [tier for tier in tiers if tier.kind in ("directory", "objects") and not tier.is_node_local]
    stores = [open_store(tier.location if tier.kind == "objects" else tier.path) for tier in lasting]
    if any(store.where == home.where for store in stores):
        raise SetupError(f"the tier {home.where} is the run's own folder", hint="choose another place for it")
    if _identity([home]) is not None or is_marked_as_copy(home.where):
        return Known()
    names = (parse_checkpoint_name(name) for store in stores for name in store.names())
    return Known(_identity(stores), max((name.writer_epoch + 1 for name in names if name), default=1))


def _identity(stores: Sequence[Store]) -> str | None:
    """Which run these belong to; None if none of them exists yet."""
    found = {}
    for store in stores:
        try:
            found[store.uuid] = store.where
        except StoreNotFound:
            continue
    if len(found) > 1:
        raise SetupError(
            f"these tiers hold different runs: {', '.join(sorted(found.values()))}",
            hint="give each run a folder of its own there",
        )
    return next(iter(found), None)
