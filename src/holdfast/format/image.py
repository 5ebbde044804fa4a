"""The image: one run of bytes that is a valid safetensors file whose data begins on a page.

Planned once from names, types and shapes; a snapshot then only copies tensors to their offsets. The
parser is stricter than the safetensors library: whatever it accepts is safe to view.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import CorruptCheckpoint, InternalError, SaveError, SetupError

PAGE = 4096
# torch's own CPU allocator aligns to this; a view at such an offset may serve as a live tensor.
ALIGNMENT = 64
# What the safetensors library reads. About 160,000 parameters with Adam's two moments each.
MAX_HEADER_BYTES = 100_000_000
MAX_RANK = 64
MAX_NAME_BYTES = 512

_CONTROL = re.compile("[\\x00-\\x1f]")

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2,
    "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class TensorSpec:
    """One tensor to be laid out: `dtype` is a safetensors code."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class ImageLayout:
    """Where every tensor lies in the file. `header` is everything before `data_start`."""

    header: bytes
    size: int
    tensors: Mapping[str, TensorSpec]
    spans: Mapping[str, tuple[int, int]]
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def data_start(self) -> int:
        return len(self.header)

    @property
    def padded_size(self) -> int:
        return -(-self.size // PAGE) * PAGE


def plan_image(specs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> ImageLayout:
    """Lay tensors out without holes, as safetensors demands, keeping as many as possible aligned."""
    # Whole multiples of the alignment first, so that each of them starts aligned; the odd sizes follow.
    # sorted() is stable: equal ones stay in the order in which training lists them, which reads faster.
    order = sorted(specs, key=lambda s: (s.nbytes % ALIGNMENT != 0, -_power_of_two_in(s.nbytes)))
    entries: dict[str, Any] = {}
    if metadata:
        entries["__metadata__"] = dict(metadata)
    spans, offset = {}, 0
    for spec in order:
        if spec.name in spans or spec.name == "__metadata__":
            raise InternalError(f"two tensors named {spec.name!r} in one image")
        spans[spec.name] = (offset, offset + spec.nbytes)
        entries[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + spec.nbytes],
        }
        offset += spec.nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    padded = -(-(8 + len(text)) // PAGE) * PAGE - 8
    if padded > MAX_HEADER_BYTES:
        raise SetupError(
            f"the names of {len(specs)} tensors and {sum(map(len, metadata.values()))} bytes for the keys "
            f"around them need a header of {padded} bytes; readers accept {MAX_HEADER_BYTES}",
            hint="keep many values in one tensor or array, not in a dict or list of that many",
        )
    header = struct.pack("<Q", padded) + text.ljust(padded)
    start = len(header)
    return ImageLayout(
        header=header,
        size=start + offset,
        tensors={s.name: s for s in specs},
        spans={n: (start + a, start + b) for n, (a, b) in spans.items()},
        metadata=dict(metadata),
    )


def require_readable(layout: ImageLayout, name: str) -> None:
    """Before anything is written under this header: a reader must find in it what was laid out."""
    try:
        found = parse_image(layout.header, layout.size)
    except CorruptCheckpoint as error:
        raise SaveError(f"{name} would be unreadable: {error.message}") from error
    if (found.tensors, found.spans, found.metadata) != (layout.tensors, layout.spans, layout.metadata):
        raise InternalError(f"the header of {name} says something else than was laid out")


def _power_of_two_in(nbytes: int) -> int:
    return min(nbytes & -nbytes, ALIGNMENT) if nbytes else ALIGNMENT


def header_length(first_eight: bytes, file_size: int) -> int:
    """Bytes before the data, from the file's first eight bytes."""
    if len(first_eight) < 8:
        raise CorruptCheckpoint("image is shorter than its own length field")
    length: int = struct.unpack("<Q", first_eight)[0]
    if length > MAX_HEADER_BYTES or 8 + length > file_size:
        raise CorruptCheckpoint(f"image header claims {length} bytes in a file of {file_size}")
    return 8 + length


def parse_image(header: bytes, file_size: int) -> ImageLayout:
    """Read a header back, refusing anything that is not exactly a tiling of the file."""
    if header_length(header[:8], file_size) != len(header):
        raise CorruptCheckpoint("image header length disagrees with its length field")
    body = header[8:]
    if not body.startswith(b"{"):
        raise CorruptCheckpoint("image header does not begin with '{'")
    try:
        entries = json.loads(body, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"image header is not JSON: {error}") from error
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CorruptCheckpoint("image metadata must map strings to strings")
    tensors: dict[str, TensorSpec] = {}
    spans: dict[str, tuple[int, int]] = {}
    start = len(header)
    for name, entry in entries.items():
        spec, (begin, end) = _parse_entry(name, entry)
        tensors[name] = spec
        spans[name] = (start + begin, start + end)
    _require_tiling(spans, start, file_size)
    return ImageLayout(header=header, size=file_size, tensors=tensors, spans=spans, metadata=metadata)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key")
    return result


def _parse_entry(name: str, entry: Any) -> tuple[TensorSpec, tuple[int, int]]:
    def refuse(why: str) -> CorruptCheckpoint:
        return CorruptCheckpoint(f"image header entry {name[:80]!r} {why}")

    if _CONTROL.search(name) or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise refuse("has an unacceptable name")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise refuse("must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise refuse(f"has the unknown type {str(dtype)[:20]!r}")
    if not _naturals(shape) or len(shape) > MAX_RANK:
        raise refuse("has an impossible shape")
    if not _naturals(offsets) or len(offsets) != 2:
        raise refuse("has impossible offsets")
    spec = TensorSpec(name, dtype, tuple(shape))
    if offsets[1] - offsets[0] != spec.nbytes:
        raise refuse(f"covers {offsets[1] - offsets[0]} bytes where its shape needs {spec.nbytes}")
    return spec, (offsets[0], offsets[1])


def _naturals(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _require_tiling(spans: Mapping[str, tuple[int, int]], start: int, file_size: int) -> None:
    at = start
    for name, (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        if begin != at:
            raise CorruptCheckpoint(f"image data has a hole or overlap before {name[:80]!r}")
        at = end
    if at != file_size:
        raise CorruptCheckpoint(f"image data ends at {at} in a file of {file_size} bytes")
