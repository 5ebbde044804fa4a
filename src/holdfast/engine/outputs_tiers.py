"""The lasting tiers of a run, as places for copies of its outputs: each name has a folder of its own there.

An output is committed in the run's own folder, on storage that all ranks share, before the with block ends.
So node-local tiers have nothing to add to it, and copies go straight outward.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from holdfast.engine.tier_words import say_fallback
from holdfast.format.names import parse_checkpoint_name
from holdfast.stores.base import Store
from holdfast.stores.locations import open_store
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.ladder import Ladder
from holdfast.tiers.named_tier import NamedTier
from holdfast.tiers.tier_list import recall_tiers
from holdfast.tiers.words import HOME, Tier

FOLDER = "outputs"


def outer_tiers(run: str, output: str) -> tuple[Tier, ...]:
    """Where copies of this output go: one place in each lasting tier that the run has now."""
    return tuple(_inside(tier, output) for tier in recall_tiers(run).now if _lasts(tier))


def copies_of(run: str, output: str, step: int | None) -> Ladder:
    """Every place that has or had copies, nearest first, to read."""
    listed = recall_tiers(run)
    places: dict[str, Store] = {HOME: CheckpointStore(os.path.join(run, FOLDER, output))}
    for tier in (*listed.now, *listed.former):
        if _lasts(tier):
            inside = _inside(tier, output)
            places[inside.location] = open_store(inside.location if inside.kind == "objects" else inside.path)
    tiers = [NamedTier(name, store) for name, store in places.items()]
    return _OfStep(tiers, step)


class _OfStep(Ladder):
    """The generations of one step, or all of them."""

    def __init__(self, tiers: Sequence[NamedTier], step: int | None) -> None:
        super().__init__(tiers, tell=say_fallback)
        self._step = step

    def names(self) -> list[str]:
        names = ((text, parse_checkpoint_name(text)) for text in super().names())
        return [text for text, name in names if self._step is None or (name and name.step == self._step)]


def _lasts(tier: Tier) -> bool:
    return tier.kind in ("directory", "objects") and not tier.is_node_local


def _inside(tier: Tier, output: str) -> Tier:
    return replace(tier, location=f"{tier.location.rstrip('/')}/{FOLDER}/{output}")
