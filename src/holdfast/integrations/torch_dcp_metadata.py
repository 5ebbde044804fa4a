"""DCP's Metadata as JSON and back: which tensors there are, in which chunks, and where their bytes lie.

Strict: what the parser accepts stays inside its files and inside its tensors, so a reader may act on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from holdfast.capture.torch_leaves import dtype_from_name, dtype_name
from holdfast.contents.dcp import DCP_FORMAT, DCP_KEY
from holdfast.errors import CorruptCheckpoint, SaveError, SetupError
from holdfast.format.manifest import FileRecord, Manifest
from holdfast.format.tree import Leaves, flatten, inflate, skeleton
from holdfast.integrations.torch_dcp_items import Written

_FORMATS = {name: getattr(torch, name) for name in ("contiguous_format", "channels_last", "preserve_format")}
# What a planner adds of its own holds no tensors.
_PLAIN = Leaves()


@dataclass(frozen=True)
class TensorPlace:
    """A stored chunk of a tensor: row-major, from byte `start` of `file`."""

    file: str
    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class ObjectPlace:
    """A stored object: a skeleton and its values; its tensors, if any, lie in `file`."""

    file: str
    node: Any
    values: list[Any]


def encode_metadata(
    metadata: Metadata, written: Mapping[MetadataIndex, Written], files: Sequence[FileRecord]
) -> dict[str, Any]:
    """The JSON record. SaveError if something the metadata promises was not written."""
    numbers = {record.name: number for number, record in enumerate(files)}
    # Pairs and not an object: a manifest's objects are sorted, and a state rebuilt from this keeps its order.
    items: list[Any] = []
    for fqn, about in metadata.state_dict_metadata.items():
        if isinstance(about, TensorStorageMetadata):
            chunks = []
            for chunk in about.chunks:
                place = _written(written, MetadataIndex(fqn, chunk.offsets))
                number = numbers[place.file.record.name]
                chunks.append([list(chunk.offsets), list(chunk.sizes), number, place.start])
            said = {**_properties(fqn, about.properties), "size": list(about.size), "chunks": chunks}
        else:
            place = _written(written, MetadataIndex(fqn))
            number = numbers[place.file.record.name]
            said = {"object": place.node, "file": number, "values": [place.file.key, *place.values]}
        items.append([fqn, said])
    return {
        "format": DCP_FORMAT,
        "items": items,
        "planner": _encode_plain(metadata.planner_data),
        "version": getattr(metadata, "version", None),
    }


def _written(written: Mapping[MetadataIndex, Written], index: MetadataIndex) -> Written:
    place = written.get(index)
    if place is None:
        raise SaveError(f"no rank has written {index.fqn!r} at offset {list(index.offset or ())}")
    return place


def _properties(fqn: str, properties: TensorProperties) -> dict[str, Any]:
    if properties.layout is not torch.strided:
        raise SetupError(f"cannot save {fqn!r}: a tensor of layout {properties.layout}")
    said: dict[str, Any] = {"dtype": dtype_name(properties.dtype)}
    if properties.memory_format is not torch.contiguous_format:
        said["memory_format"] = str(properties.memory_format).removeprefix("torch.")
    for flag in ("requires_grad", "pin_memory"):
        if getattr(properties, flag):
            said[flag] = True
    return said


def _encode_plain(data: Any) -> Any:
    values = [_PLAIN.encode(value) for value in flatten(data, _PLAIN, "planner_data").values]
    return [skeleton(data, _PLAIN, iter(()), "planner_data"), values]


def decode_metadata(manifest: Manifest) -> Metadata:
    """DCP's Metadata again; its `storage_data` maps every index to its place."""
    record: Any = manifest.values.get(DCP_KEY)
    try:
        if record["format"] != DCP_FORMAT or set(record) != {"format", "items", "planner", "version"}:
            raise ValueError("unknown fields or format")
        places: dict[MetadataIndex, TensorPlace | ObjectPlace] = {}
        state: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        for fqn, entry in record["items"]:
            if not isinstance(fqn, str) or fqn in state:
                raise ValueError(f"{str(fqn)[:80]!r} is there twice, or is no name")
            if "object" in entry:
                places[MetadataIndex(fqn)] = _object(entry, manifest)
                state[fqn] = BytesStorageMetadata()
            else:
                state[fqn] = _tensor(fqn, entry, manifest, places)
        node, values = record["planner"]
        metadata = Metadata(state, inflate(node, values, _no_tensor, _PLAIN), places)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise CorruptCheckpoint(f"the DCP metadata of {manifest.name} cannot be read: {error!r}") from error
    if hasattr(metadata, "version"):  # torch has it since 2.12
        metadata.version = record["version"]
    return metadata


def _tensor(
    fqn: str, entry: Any, manifest: Manifest, places: dict[MetadataIndex, TensorPlace | ObjectPlace]
) -> TensorStorageMetadata:
    if not {"dtype", "size", "chunks"} <= set(entry) <= {"dtype", "size", "chunks", *_OPTIONAL}:
        raise ValueError(f"{fqn!r} has missing or unknown fields")
    size, dtype = _naturals(entry["size"]), dtype_from_name(entry["dtype"])
    chunks = []
    for offsets, sizes, number, start in entry["chunks"]:
        chunk = ChunkStorageMetadata(torch.Size(_naturals(offsets)), torch.Size(_naturals(sizes)))
        if not len(size) == len(offsets) == len(sizes) or any(
            at + length > whole for at, length, whole in zip(offsets, sizes, size, strict=True)
        ):
            raise ValueError(f"a chunk of {fqn!r} lies outside of it")
        file = manifest.files[_naturals([number])[0]]
        place = TensorPlace(file.name, _naturals([start])[0], dtype, tuple(sizes))
        if place.stop > file.size or MetadataIndex(fqn, chunk.offsets) in places:
            raise ValueError(f"a chunk of {fqn!r} lies outside of {file.name} or is there twice")
        places[MetadataIndex(fqn, chunk.offsets)] = place
        chunks.append(chunk)
    flags = {flag: entry.get(flag, False) for flag in ("requires_grad", "pin_memory")}
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise ValueError(f"a flag of {fqn!r} is neither true nor false")
    memory_format = _FORMATS[entry.get("memory_format", "contiguous_format")]
    properties = TensorProperties(dtype=dtype, memory_format=memory_format, **flags)
    return TensorStorageMetadata(properties, torch.Size(size), chunks)


_OPTIONAL = ("requires_grad", "pin_memory", "memory_format")


def _object(entry: Any, manifest: Manifest) -> ObjectPlace:
    if set(entry) != {"object", "file", "values"}:
        raise ValueError("an object has missing or unknown fields")
    key, begin, end = entry["values"]
    begin, end = _naturals([begin, end])
    values = manifest.values[key]
    if not isinstance(values, list) or not begin <= end <= len(values):
        raise ValueError("an object's values are not there")
    return ObjectPlace(manifest.files[_naturals([entry["file"]])[0]].name, entry["object"], values[begin:end])


def _naturals(values: Any) -> list[int]:
    if not isinstance(values, list) or not all(type(v) is int and v >= 0 for v in values):
        raise ValueError(f"{str(values)[:80]} are not natural numbers")
    return values


def _no_tensor(entry: Any) -> Any:
    raise ValueError("the planner's data claims to hold a tensor")
