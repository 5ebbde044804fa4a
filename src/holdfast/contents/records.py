"""What every rank of a checkpoint says about itself: its values, and its images' tables of contents.

A checkpoint of one process says it in its manifest and at the head of its images; where several ranks wrote
together, each has a record that says both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.checkpoints.find import Found
from holdfast.checkpoints.read import open_verified, read_files, require_manifest
from holdfast.checkpoints.verify import read_layout
from holdfast.errors import CorruptCheckpoint
from holdfast.format.rank_record import ImageHeader, RankRecord, parse_rank_record, record_name
from holdfast.format.tree import Leaves, decode_key
from holdfast.stores.base import Store

Entry = dict[str, Any]


def read_records(
    store: Store, found: Found, ranks: Sequence[int], *, verified: bool = True
) -> list[RankRecord]:
    """What these ranks say. Reads headers and records, no tensors.

    `verified` compares the digests of a single process's headers, which costs the chunks they lie in: not for
    whoever only shows what there is.
    """
    manifest = require_manifest(found)
    if manifest.world == 1:
        headers = {}
        for record in manifest.files:
            with open_verified(store, found, record) as file:
                layout = read_layout(file if verified else file.nearest())
            headers[record.name] = ImageHeader.of(layout)
        return [RankRecord(0, 1, manifest.values, headers)]
    sizes = {record.name: record.size for record in manifest.files}
    names = [record_name(rank) for rank in ranks]
    for rank, name in zip(ranks, names, strict=True):
        if name not in sizes:
            raise CorruptCheckpoint(f"checkpoint {found.name} has no record of rank {rank}")
    files = read_files(store, found, names)
    records = [parse_rank_record(bytes(files[name])) for name in names]
    for rank, name, said in zip(ranks, names, records, strict=True):
        # What is read later is read from files of the manifest's sizes.
        odd = [file for file, header in said.headers.items() if sizes.get(file) != header.file_bytes]
        if said.rank != rank or odd:
            raise CorruptCheckpoint(f"{name} of {found.name} does not describe the files of rank {rank}")
    return records


def tensor_entries(
    node: Any, path: tuple[Any, ...], leaves: Leaves
) -> Iterator[tuple[tuple[Any, ...], Entry]]:
    """What a skeleton says about each tensor, with its path."""
    if not isinstance(node, dict):
        return
    for kind, content in node.items():
        if kind == "tensor":
            yield path, content
        elif kind == "wrapped":
            yield from tensor_entries(content, path, leaves)
        elif kind in ("dict", "odict", "counter", "defaultdict"):
            for key, item in content:
                yield from tensor_entries(item, (*path, decode_key(key, leaves)), leaves)
        elif kind != "with":
            for index, item in enumerate(content):
                yield from tensor_entries(item, (*path, index), leaves)
