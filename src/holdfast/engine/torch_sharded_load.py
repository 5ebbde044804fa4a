"""Load what several ranks saved, or what must be spread over ranks: only the bytes this rank needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.capture.torch_fill import Need
from holdfast.capture.torch_live import live_groups, live_leaves
from holdfast.capture.torch_reader import Reader
from holdfast.capture.torch_registry import Tracked
from holdfast.capture.torch_reshard import SavedState
from holdfast.checkpoints.find import Found
from holdfast.checkpoints.ranges import Wanted, read_ranges
from holdfast.checkpoints.rank_claims import ALIKE
from holdfast.checkpoints.read import read_files, require_manifest
from holdfast.format.image import header_length, parse_image
from holdfast.format.manifest import Manifest
from holdfast.format.rank_record import ImageHeader, RankRecord, parse_rank_record, record_name
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
    saved = SavedState(_record(store, found, manifest, base), reader, keys)
    seen = {base}
    while some := _next_records(saved, seen, rank / world, manifest.world):
        for record in _records(store, found, some):
            saved.take(record)
        seen.update(some)
    needs = saved.needs()
    read = read_ranges(store, found, _wanted(needs.values()))
    return Sharded(found, saved.build(needs), read)


def _next_records(saved: SavedState, seen: set[int], place: float, world: int) -> list[int]:
    """A few of the ranks that may hold what is missing: the likely ones first, then those whose place among
    all ranks is like this one's."""
    likely = [rank for rank in saved.likely_sources if rank not in seen]
    if not likely:
        likely = sorted(saved.sources - seen, key=lambda rank: abs(rank / world - place))
    return likely[:_AT_ONCE]


def _wanted(needs: Any) -> list[Wanted]:
    unique: dict[int, Need] = {id(need): need for need in needs}
    return [Wanted(*want) for need in unique.values() for want in need.wanted]


def _record(store: Store, found: Found, manifest: Manifest, rank: int) -> RankRecord:
    if manifest.world == 1:
        return RankRecord(0, 1, manifest.values, _headers(store, found, manifest))
    return _records(store, found, [rank])[0]


def _records(store: Store, found: Found, ranks: Sequence[int]) -> list[RankRecord]:
    names = [record_name(rank) for rank in ranks]
    files = read_files(store, found, names)
    return [parse_rank_record(bytes(files[name])) for name in names]


def _headers(store: Store, found: Found, manifest: Manifest) -> dict[str, ImageHeader]:
    """The headers of a single process's images, from the images themselves."""
    headers = {}
    for record in manifest.files:
        start = bytearray(min(8, record.size))
        read_ranges(store, found, [Wanted(record.name, 0, memoryview(start))])
        length = header_length(bytes(start), record.size)
        header = bytearray(length)
        read_ranges(store, found, [Wanted(record.name, 0, memoryview(header))])
        headers[record.name] = ImageHeader.of(parse_image(bytes(header), record.size))
    return headers
