"""A checkpoint's state as flat paths and leaves, read without torch and without building any user object.

A leaf is a StoredTensor (where its bytes lie and what they mean) or a plain value.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoints.find import Found
from holdfast.checkpoints.read import open_checked, require_manifest
from holdfast.errors import CorruptCheckpoint
from holdfast.format.image import ImageLayout, header_length, parse_image
from holdfast.format.tree import Leaves, inflate
from holdfast.stores.base import Store

# What capture calls METADATA_KEY; its module imports torch, and a test holds the two together.
SKELETON = "holdfast.skeleton"


@dataclass(frozen=True)
class StoredTensor:
    """`kind` is the type it had in training, such as "float32"; `numpy` tells arrays from tensors."""

    file: str
    start: int
    stop: int
    kind: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    is_array: bool

    @property
    def nbytes(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.kind}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class ForeignValue:
    """A value of a library that is not loaded here, such as torch.dtype: comparable and printable."""

    tag: str
    payload: str

    def __str__(self) -> str:
        return f"{self.tag}({self.payload})"


# safetensors code -> the name that training knows it by.
KINDS = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32",
    "F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip


def _foreign(tag: str) -> Any:
    return lambda payload: ForeignValue(tag, json.dumps(payload))


_LEAVES = Leaves(decoders={tag: _foreign(tag) for tag in ("torch.Size", "torch.dtype", "torch.device")})

# A path as the user's containers have it. Keys are kept apart by their repr: 1 is not "1".
Path = tuple[str, ...]


@dataclass(frozen=True)
class Leaf:
    label: str
    value: Any


def read_layouts(store: Store, found: Found) -> dict[str, ImageLayout]:
    """The tables of contents of every image: headers only, no data."""
    layouts = {}
    for record in require_manifest(found).files:
        file = open_checked(store, found, record)
        try:
            first = memoryview(bytearray(min(8, file.size)))
            file.read_into(0, first)
            header = memoryview(bytearray(header_length(bytes(first), file.size)))
            file.read_into(0, header)
        finally:
            file.close()
        layouts[record.name] = parse_image(bytes(header), file.size)
    return layouts


def layout_of(image: memoryview) -> ImageLayout:
    """The same, of an image in memory."""
    return parse_image(bytes(image[: header_length(bytes(image[:8]), len(image))]), len(image))


def tracked_in(file: str, layout: ImageLayout) -> list[str]:
    """The names of the tracked objects in an image."""
    return list(_skeletons(file, layout))


def leaves_of(found: Found, layouts: Mapping[str, ImageLayout]) -> dict[Path, Leaf]:
    """Every leaf of every tracked object in these images, by its path."""
    values = require_manifest(found).values
    leaves: dict[Path, Leaf] = {}
    for file, layout in layouts.items():
        for key, state in _states(file, layout, values).items():
            leaves.update(_flat(state, (key,), key))
    return leaves


def _states(file: str, layout: ImageLayout, values: Mapping[str, Any]) -> dict[str, Any]:
    def tensor(entry: Mapping[str, Any]) -> StoredTensor:
        return _describe(file, layout, entry)

    skeletons = _skeletons(file, layout)
    try:
        return {key: inflate(node, values[key], tensor, _LEAVES) for key, node in skeletons.items()}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptCheckpoint(f"{file} does not match its skeleton: {error!r}") from error


def _skeletons(file: str, layout: ImageLayout) -> dict[str, Any]:
    try:
        found = json.loads(layout.metadata[SKELETON])
    except (KeyError, ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"{file} has no readable skeleton: {error!r}") from error
    if not isinstance(found, dict):
        raise CorruptCheckpoint(f"{file} has a skeleton that is not an object")
    return found


def _describe(file: str, layout: ImageLayout, entry: Mapping[str, Any]) -> StoredTensor:
    name = entry["name"]
    (start, stop), spec = layout.spans[name], layout.tensors[name]
    kind, shape = entry.get("dtype", KINDS[spec.dtype]), entry.get("shape", spec.shape)
    if "numpy" in entry:
        kind, shape = entry["numpy"]
    stride = entry.get("stride")
    return StoredTensor(
        file, start, stop, str(kind), tuple(shape), tuple(stride) if stride else None, "numpy" in entry
    )


def _flat(value: Any, path: Path, label: str) -> Iterator[tuple[Path, Leaf]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, (*path, repr(key)), f"{label}/{key}")
    elif isinstance(value, Sequence | deque) and not isinstance(value, str | bytes) and value:
        for index, item in enumerate(value):
            yield from _flat(item, (*path, repr(index)), f"{label}/{index}")
    else:
        yield path, Leaf(label, value)
