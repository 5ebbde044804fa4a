"""Load what several ranks saved, or what must be spread over ranks: only the bytes this rank needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.capture.torch_live import live_leaves
from holdfast.capture.torch_registry import Tracked
from holdfast.capture.torch_reshard import Need, SavedState
from holdfast.checkpoints.find import Found
from holdfast.checkpoints.ranges import Wanted, read_ranges
from holdfast.checkpoints.read import read_files, require_manifest
from holdfast.format.image import header_length, parse_image
from holdfast.format.manifest import Manifest
from holdfast.format.rank_record import ImageHeader, RankRecord, parse_rank_record, record_name
from holdfast.stores.base import Store


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
    store: Store, found: Found, tracked: Sequence[Tracked], rank: int = 0, keys: Sequence[str] | None = None
) -> Sharded:
    """The states of the tracked objects as rank `rank` needs them; whole tensors where nothing is live.

    A rank that did not exist when it was saved takes rank 0's view of what belongs to single ranks.
    """
    manifest = require_manifest(found)
    saved = SavedState(_records(store, found, manifest), rank if rank < manifest.world else 0)
    needs = saved.needs(live_leaves(tracked), keys)
    read = read_ranges(store, found, _wanted(needs.values()))
    return Sharded(found, saved.build(needs), read)


def _wanted(needs: Any) -> list[Wanted]:
    unique: dict[int, Need] = {id(need): need for need in needs}
    return [Wanted(*want) for need in unique.values() for want in need.wanted]


def _records(store: Store, found: Found, manifest: Manifest) -> list[RankRecord]:
    if manifest.world == 1:
        return [RankRecord(0, 1, manifest.values, _headers(store, found, manifest))]
    names = [record_name(rank) for rank in range(manifest.world)]
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
