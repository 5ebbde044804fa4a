"""What every rank of a checkpoint says about itself: its values, and its images' tables of contents.

A checkpoint of one process says it in its manifest and at the head of its images; where several ranks wrote
together, each has a record that says both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoints.find import Found
from holdfast.checkpoints.read import open_verified, read_files, require_manifest
from holdfast.checkpoints.verify import read_layout
from holdfast.errors import CorruptCheckpoint
from holdfast.format.image import ImageLayout
from holdfast.format.manifest import FileRecord
from holdfast.format.rank_record import parse_rank_record, record_name
from holdfast.stores.base import Store


@dataclass(frozen=True)
class RankImages:
    rank: int
    values: Mapping[str, Any]
    layouts: Mapping[str, ImageLayout]


def images_of_ranks(store: Store, found: Found) -> Iterator[RankImages]:
    """Rank 0's first. Reads headers and records, no tensors."""
    manifest = require_manifest(found)
    if manifest.world == 1:
        layouts = {record.name: _read_layout(store, found, record) for record in manifest.files}
        yield RankImages(0, manifest.values, layouts)
        return
    sizes = {record.name: record.size for record in manifest.files}
    for rank in range(manifest.world):
        name = record_name(rank)
        if name not in sizes:
            raise CorruptCheckpoint(f"checkpoint {found.name} has no record of rank {rank}")
        record = parse_rank_record(bytes(read_files(store, found, [name])[name]))
        layouts = record.layouts()
        # What is read later is read from files of the manifest's sizes.
        odd = [file for file, layout in layouts.items() if sizes.get(file) != layout.size]
        if record.rank != rank or odd:
            raise CorruptCheckpoint(f"{name} of {found.name} does not describe the files of rank {rank}")
        yield RankImages(rank, record.values, layouts)


def _read_layout(store: Store, found: Found, record: FileRecord) -> ImageLayout:
    with open_verified(store, found, record) as file:
        return read_layout(file.nearest())
