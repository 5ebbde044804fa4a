"""What one rank writes: DCP's write items as one image, tensors by name and objects as trees beside them."""

from __future__ import annotations

import ctypes
import io
import json
import math
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem, WriteItemType

from holdfast.capture.torch_leaves import CODES, TORCH_LEAVES, as_tensor, describe_leaf
from holdfast.checkpoints.read import allocate_pages
from holdfast.errors import SetupError
from holdfast.format.image import MAX_NAME_BYTES, ImageLayout, TensorSpec, plan_image
from holdfast.format.manifest import FileRecord
from holdfast.format.tree import flatten, skeleton

# ---- An image that exists only chunk by chunk: assembled from tensors while it is written.


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's values in row-major order as bytes, on its own device; a view wherever it can be."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)


class StreamedImage:
    """Satisfies ImageSource for stores that are done with one view before they ask for the next in the same
    thread: its buffer is used again."""

    concurrent = True

    def __init__(self, name: str, layout: ImageLayout, tensors: Mapping[str, torch.Tensor]) -> None:
        self.name = name
        self.size = layout.size
        self._header = layout.header
        spans = sorted((layout.spans[key], key) for key in tensors)
        self._pieces = [
            (start, stop, flat_bytes(tensors[key])) for (start, stop), key in spans if start < stop
        ]
        self._starts = [start for start, _, _ in self._pieces]
        self._buffers = threading.local()

    def view(self, start: int, stop: int) -> memoryview:
        buffer = self._buffer(stop - start)
        if start < len(self._header):
            head = self._header[start:stop]
            buffer[: len(head)] = head
        # The piece before may reach into this range.
        number = max(bisect_right(self._starts, start) - 1, 0)
        while number < len(self._pieces) and self._pieces[number][0] < stop:
            begin, end, data = self._pieces[number]
            low, high = max(begin, start), min(end, stop)
            if low < high:
                _copy(data, low - begin, high - begin, buffer, low - start)
            number += 1
        return buffer

    def _buffer(self, size: int) -> memoryview:
        kept: memoryview | None = getattr(self._buffers, "memory", None)
        if kept is None or len(kept) < size:
            kept = self._buffers.memory = allocate_pages(size)
        return kept[:size]


def _copy(data: torch.Tensor, low: int, high: int, buffer: memoryview, at: int) -> None:
    if data.device.type == "cpu":
        target = ctypes.addressof(ctypes.c_char.from_buffer(buffer, at))
        ctypes.memmove(target, data.data_ptr() + low, high - low)
    else:
        torch.frombuffer(buffer, dtype=torch.uint8)[at : at + high - low].copy_(data[low:high])


SKELETON = "holdfast.skeleton"


@dataclass(frozen=True)
class RankFile:
    """The file of one rank, durable. `values` are the leaves of its objects that are not tensors."""

    key: str
    record: FileRecord
    values: list[Any]


@dataclass(frozen=True)
class Written:
    """Where one item went: a tensor begins at `start`; an object is a skeleton and its span of values."""

    file: RankFile
    start: int = 0
    node: Any = None
    values: tuple[int, int] = (0, 0)


class RankImage:
    """The layout of one rank's items, ready to be written."""

    def __init__(self, rank: int, items: Sequence[WriteItem], planner: SavePlanner) -> None:
        self.key = f"r{rank:05d}"
        self.values: list[Any] = []
        self._tensors: dict[str, torch.Tensor] = {}
        self._specs: list[TensorSpec] = []
        self._names: dict[MetadataIndex, str] = {}
        self._objects: dict[MetadataIndex, tuple[Any, list[dict[str, Any]], tuple[int, int]]] = {}
        state: dict[str, Any] = {}
        entries: list[dict[str, Any]] = []
        for item in items:
            data: Any = planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                value = _object_in(data, item.index.fqn)
                label = self._unused(item.index.fqn, state)
                entries += self._add_object(item.index, value)
            else:
                value = data
                label = self._unused(_label(item), state)
                entries.append(self._add_tensor(data, label, item.index.fqn))
                self._names[item.index] = label
            state[label] = value
        skeletons = {self.key: skeleton(state, TORCH_LEAVES, iter(entries), self.key)}
        metadata = {SKELETON: json.dumps(skeletons, separators=(",", ":")), "format": "pt"}
        self.layout = plan_image(self._specs, metadata)
        self.source = StreamedImage(f"dcp-{self.key}.safetensors", self.layout, self._tensors)

    def written(self, record: FileRecord) -> dict[MetadataIndex, Written]:
        """Where everything is, now that the file is durable."""
        file = RankFile(self.key, record, self.values)
        placed = {index: Written(file, self.layout.spans[name][0]) for index, name in self._names.items()}
        for index, (value, entries, span) in self._objects.items():
            node = skeleton(value, TORCH_LEAVES, self._located(entries), index.fqn)
            placed[index] = Written(file, node=node, values=span)
        return placed

    def _located(self, entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for entry in entries:
            spec = self.layout.tensors[entry["name"]]
            place = {"code": spec.dtype, "dims": list(spec.shape), "at": self.layout.spans[spec.name][0]}
            yield {**entry, **place}

    def _add_object(self, index: MetadataIndex, value: Any) -> list[dict[str, Any]]:
        flat = flatten(value, TORCH_LEAVES, index.fqn)
        entries = []
        for number, leaf in enumerate(flat.tensors):
            name = self._unused(_printable(f"{index.fqn}/{number}"), self._tensors)
            entries.append(self._add_tensor(leaf, name, index.fqn))
        begin = len(self.values)
        self.values += [TORCH_LEAVES.encode(leaf) for leaf in flat.values]
        self._objects[index] = (value, entries, (begin, len(self.values)))
        return entries

    def _add_tensor(self, leaf: torch.Tensor | np.ndarray[Any, Any], name: str, fqn: str) -> dict[str, Any]:
        tensor = as_tensor(leaf, repr(fqn))
        code = CODES.get(tensor.dtype)
        shape = (tensor.nbytes,) if code is None else tuple(tensor.shape)
        self._specs.append(TensorSpec(name, code or "U8", shape))
        self._tensors[name] = tensor
        return describe_leaf(leaf, name)

    def _unused(self, name: str, among: dict[str, Any]) -> str:
        # Two keys can differ in nothing but characters that an image may not hold.
        while name in among or name in self._tensors or name == "__metadata__":
            name += "~"
        return name


def stored_bytes(items: Sequence[WriteItem]) -> int:
    """What the tensors among these will take, for the free-space check; objects are small."""
    return sum(
        math.prod(item.tensor_data.chunk.sizes) * item.tensor_data.properties.dtype.itemsize
        for item in items
        if item.tensor_data is not None
    )


def _label(item: WriteItem) -> str:
    """The tensor's own name where it is whole; for a part also which: "weight[7:13, 0:4]"."""
    fqn, data = _printable(item.index.fqn), item.tensor_data
    assert data is not None
    if tuple(data.chunk.sizes) == tuple(data.size):
        return fqn
    bounds = zip(data.chunk.offsets, data.chunk.sizes, strict=True)
    return f"{fqn}[{', '.join(f'{at}:{at + size}' for at, size in bounds)}]"


def _printable(text: str) -> str:
    text = "".join(c if c.isprintable() else "?" for c in text.encode("utf-8", "replace").decode())
    return text.encode()[: MAX_NAME_BYTES - 300].decode(errors="ignore")


def _object_in(data: Any, fqn: str) -> Any:
    """The value that the planner has serialised a moment ago, in this process: nothing foreign is read."""
    if not isinstance(data, io.BytesIO):
        raise SetupError(f"cannot save {fqn!r}: the planner gave a {type(data).__name__}, not bytes")
    data.seek(0)
    try:
        return torch.load(data, weights_only=False)
    except Exception as error:
        raise SetupError(
            f"cannot save {fqn!r}: what the planner made of it is not an object saved by torch",
            hint="store such bytes as a uint8 tensor",
        ) from error
