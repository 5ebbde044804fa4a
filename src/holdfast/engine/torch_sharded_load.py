"""Load what several ranks saved, or what must be spread over ranks: only the bytes this rank needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.capture.torch_live import live_groups, live_leaves
from holdfast.capture.torch_reader import Reader
from holdfast.capture.torch_registry import Tracked
from holdfast.capture.torch_reshard import Need, SavedState
from holdfast.checkpoints.find import Found
from holdfast.checkpoints.ranges import read_ranges
from holdfast.checkpoints.rank_claims import ALIKE
from holdfast.checkpoints.read import require_manifest
from holdfast.contents.records import read_records
from holdfast.format.manifest import Manifest
from holdfast.stores.base import Store

# Records that are read side by side: their number may not grow with that of the ranks.
_AT_ONCE = 16


@dataclass(frozen=True)
class Sharded:
    """States, verified and built, nothing applied yet."""

    found: Found
    states: dict[str, Any]
    bytes_read: int

    @property
    def manifest(self) -> Manifest:
        return require_manifest(self.found)


def load_sharded(
    store: Store,
    found: Found,
    tracked: Sequence[Tracked],
    rank: int = 0,
    world: int = 1,
    keys: Sequence[str] | None = None,
) -> Sharded:
    """The states of the tracked objects as rank `rank` of `world` needs them; whole tensors where nothing is
    live.

    A rank that did not exist when it was saved takes rank 0's view of what belongs to single ranks.
    """
    manifest = require_manifest(found)
    alike = {key: said[ALIKE] for key, said in manifest.contains.items() if ALIKE in said}
    reader = Reader(live_leaves(tracked), rank, world, manifest.world, live_groups(tracked), alike)
    base = rank if rank < manifest.world else 0
    saved = SavedState(read_records(store, found, [base])[0], reader, keys)
    seen = {base}
    while some := _next_records(saved, seen, rank / world, manifest.world):
        for record in read_records(store, found, some):
            saved.take(record)
        seen.update(some)
    needs = saved.needs()
    unique: dict[int, Need] = {id(need): need for need in needs.values()}
    read = read_ranges(store, found, [want for need in unique.values() for want in need.wanted])
    return Sharded(found, saved.build(needs), read)


def _next_records(saved: SavedState, seen: set[int], place: float, world: int) -> list[int]:
    """A few of the ranks that may hold what is missing: the likely ones first, then those whose place among
    all ranks is like this one's."""
    likely = [rank for rank in saved.likely_sources if rank not in seen]
    if not likely:
        likely = sorted(saved.sources - seen, key=lambda rank: abs(rank / world - place))
    return likely[:_AT_ONCE]
