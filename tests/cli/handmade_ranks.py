"""Checkpoints of several ranks made by hand, without torch: also those that no training would write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.checkpoints.bytes_source import BytesSource
from holdfast.checkpoints.find import Found, look
from holdfast.checkpoints.write import CheckpointDraft, write_checkpoint
from holdfast.format.image import ImageLayout, TensorSpec, plan_image
from holdfast.format.names import of_rank
from holdfast.format.rank_record import ImageHeader, RankRecord, record_name
from holdfast.format.tree import SKELETON
from holdfast.stores.store import CheckpointStore

CODES = {"float32": "F32", "int64": "I64", "uint8": "U8"}


@dataclass
class Tensor:
    """What one rank says of a tensor (`said`), and what it holds of it: None if another rank writes it."""

    data: np.ndarray[Any, Any] | None
    said: Mapping[str, Any] = field(default_factory=dict)


def save_by_hand(
    folder: Path, ranks: Sequence[Mapping[str, Tensor | int]], *, step: int = 1, lie: int = 0
) -> tuple[CheckpointStore, Found]:
    """One model called "model" whose state is a dict; `lie` makes every record claim larger files."""
    store = CheckpointStore(folder)
    store.claim()
    sources, roles = [], {}
    for rank, state in enumerate(ranks):
        file, layout, data, values = _image(rank, state)
        header = ImageHeader.of(layout)
        told = ImageHeader(header.text, header.header_bytes, header.file_bytes + lie)
        record = RankRecord(rank, len(ranks), {"model": values}, {file: told})
        sources += [
            BytesSource(file, layout.header + data),
            BytesSource(record_name(rank), record.to_bytes()),
        ]
        roles |= {file: "weights", record_name(rank): "rank"}
    draft = CheckpointDraft(
        writer_epoch=store.writer_epoch, step=step, created="", reason="", world=len(ranks), roles=roles,
        contains={"model": {"role": "weights", "tensors": 0, "bytes": 0}},
    )  # fmt: skip
    committed = write_checkpoint(store, draft, sources)
    store.release()
    return store, look(store, committed.name)


def _image(rank: int, state: Mapping[str, Tensor | int]) -> tuple[str, ImageLayout, bytes, list[int]]:
    specs, arrays, pairs, values = [], {}, [], []
    for key, item in state.items():
        if isinstance(item, int):
            pairs.append([key, len(values)])
            values.append(item)
            continue
        said = {"name": key, **item.said}
        pairs.append([key, {"tensor": said}])
        if item.data is not None and said["name"] not in arrays:
            raw = "dtype" in said
            shape = (item.data.nbytes,) if raw else item.data.shape
            specs.append(TensorSpec(said["name"], "U8" if raw else CODES[str(item.data.dtype)], shape))
            arrays[said["name"]] = item.data
    layout = plan_image(specs, {SKELETON: json.dumps({"model": {"dict": pairs}})})
    order = sorted(arrays, key=lambda name: layout.spans[name])
    data = b"".join(np.ascontiguousarray(arrays[name]).tobytes() for name in order)
    return of_rank("model.safetensors", rank), layout, data, values
