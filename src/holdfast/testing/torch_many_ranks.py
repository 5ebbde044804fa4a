"""A checkpoint of very many ranks, held in memory: what each of a thousand processes would have written."""

from __future__ import annotations

import json
import threading
from collections import Counter

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from holdfast.checkpoints.find import Found
from holdfast.format.checksum import ALGORITHM, CHUNK_BYTES, chunk_count, chunk_span, digest
from holdfast.format.image import TensorSpec, plan_image
from holdfast.format.manifest import FileRecord, Manifest
from holdfast.format.names import of_rank
from holdfast.format.rank_record import ImageHeader, RankRecord, record_name
from holdfast.format.tree import SKELETON

COLUMNS = 4


class ManyRanks:
    """The reading half of a store with one checkpoint: `tensors` parameters of `world` rows, a row for each
    rank, as FSDP2 divides them. Counts what is opened, and how much of it at the same time."""

    where = "memory"
    uuid = "00000000-0000-4000-8000-000000000000"

    def __init__(self, world: int, tensors: int) -> None:
        self.opened: Counter[str] = Counter()
        self.open_now = self.most_open = 0
        self._lock = threading.Lock()
        self._files: dict[str, bytes] = {}
        for rank in range(world):
            image, record = _files_of(rank, world, tensors)
            self._files[of_rank("model.safetensors", rank)] = image
            self._files[record_name(rank)] = record
        manifest = Manifest(
            store=self.uuid, writer_epoch=1, step=1, nonce="00000001", parent=None, created="",
            reason="", world=world, contains={"model": {"role": "weights"}},
            files=tuple(_file_record(name, data) for name, data in self._files.items()),
        )  # fmt: skip
        self.found = Found(manifest.name, manifest, "0" * 64)

    def open(self, name: str, file: str) -> _OpenBytes:
        with self._lock:
            self.opened[file] += 1
            self.open_now += 1
            self.most_open = max(self.most_open, self.open_now)
        return _OpenBytes(self, self._files[file])

    def closed(self) -> None:
        with self._lock:
            self.open_now -= 1


class _OpenBytes:
    def __init__(self, store: ManyRanks, data: bytes) -> None:
        self.size = len(data)
        self._store = store
        self._data = data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self._data[offset : offset + len(buffer)]

    def close(self) -> None:
        self._store.closed()


def parameter_name(index: int) -> str:
    return f"layers.{index}.weight"


def value_of(index: int, row: int) -> float:
    return float((index * 7 + row) % 1000)


def live_model(world: int, rows: int, tensors: int) -> nn.Module:
    """What one of `world` ranks has before it restores; torch.distributed is initialised (backend "fake").

    Once for each `world` in a process: torch keeps what it knows of a mesh, the rank included.
    """
    mesh = init_device_mesh("cpu", (world,))
    model = nn.Module()
    model.layers = nn.ModuleList()
    for _ in range(tensors):
        layer = nn.Module()
        layer.weight = nn.Parameter(distribute_tensor(torch.zeros(rows, COLUMNS), mesh, [Shard(0)]))
        model.layers.append(layer)
    return model


def _files_of(rank: int, world: int, tensors: int) -> tuple[bytes, bytes]:
    file = of_rank("model.safetensors", rank)
    specs = [TensorSpec(parameter_name(i), "F32", (1, COLUMNS)) for i in range(tensors)]
    part = {"global": [world, COLUMNS], "offset": [rank, 0]}
    names = [parameter_name(index) for index in range(tensors)]
    entries = [[name, {"tensor": {"name": name, **part}}] for name in names]
    layout = plan_image(specs, {SKELETON: json.dumps({"model": {"dict": entries}}), "format": "pt"})
    image = bytearray(layout.size)
    image[: len(layout.header)] = layout.header
    values = torch.tensor([value_of(i, rank) for i in range(tensors)]).repeat_interleave(COLUMNS)
    data = values.reshape(tensors, COLUMNS).numpy()
    for index in range(tensors):
        start, stop = layout.spans[parameter_name(index)]
        image[start:stop] = data[index].tobytes()
    record = RankRecord(rank, world, {"model": []}, {file: ImageHeader.of(layout)})
    return bytes(image), record.to_bytes()


def _file_record(name: str, data: bytes) -> FileRecord:
    spans = [chunk_span(index, len(data)) for index in range(chunk_count(len(data)))]
    digests = tuple(digest(data[start:stop]) for start, stop in spans)
    return FileRecord(name, len(data), "", ALGORITHM, CHUNK_BYTES, digests)


__all__ = ["COLUMNS", "ManyRanks", "live_model", "parameter_name", "value_of"]
