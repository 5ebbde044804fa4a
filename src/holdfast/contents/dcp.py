"""What torch.distributed.checkpoint saved through HoldfastWriter, read from the manifest. No torch.

The record is written and strictly parsed by integrations/torch_dcp_metadata.py, which needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast.contents.numbers import item_bytes
from holdfast.contents.regions import Piece, Region, require_complete
from holdfast.contents.tensors import KINDS, StoredTensor
from holdfast.errors import CorruptCheckpoint
from holdfast.format.image import ITEM_BYTES
from holdfast.format.manifest import Manifest
from holdfast.format.tree import Leaves, inflate

DCP_KEY, DCP_FORMAT = "dcp", 1
_CODES = {kind: code for code, kind in KINDS.items()}
_PLAIN = Leaves()

# The state_dict's own path to a value: dict keys are strings, numbers count the items of a list.
DcpPath = tuple[str | int, ...]
# What becomes of a tensor: where it is stored, and, inside of an object, the skeleton's entry.
Make = Callable[[StoredTensor, Mapping[str, Any] | None], Any]


def is_dcp(manifest: Manifest) -> bool:
    return DCP_KEY in manifest.values


def dcp_items(
    manifest: Manifest, leaves: Leaves, make: Make = lambda stored, said: stored
) -> Iterator[tuple[DcpPath, Any]]:
    """Every tensor and every object that was saved, with its path."""
    record = manifest.values[DCP_KEY]
    try:
        if record["format"] != DCP_FORMAT:
            raise ValueError(f"format {str(record['format'])[:20]!r}")
        node, values = record["planner"]
        paths = inflate(node, values, _no_tensor, _PLAIN)
        for fqn, said in record["items"]:
            path = tuple(paths[fqn]) if isinstance(paths, dict) and paths.get(fqn) else (str(fqn),)
            if "object" in said:
                yield path, _object(fqn, said, manifest, leaves, make)
            else:
                yield path, make(_tensor(fqn, said, manifest), None)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise CorruptCheckpoint(f"the DCP metadata of {manifest.name} cannot be read: {error!r}") from error


def _tensor(fqn: str, said: Mapping[str, Any], manifest: Manifest) -> StoredTensor:
    kind, shape = str(said["dtype"]), tuple(said["size"])
    pieces = []
    for offset, sizes, number, start in said["chunks"]:
        if math.prod(sizes):
            stop = start + math.prod(sizes) * item_bytes(kind)
            pieces.append(_piece(manifest, number, start, stop, Region(tuple(offset), tuple(sizes))))
    require_complete(fqn, shape, pieces)
    return StoredTensor(fqn, kind, _CODES.get(kind, "U8"), shape, tuple(pieces), strides_known=False)


def _object(fqn: str, said: Mapping[str, Any], manifest: Manifest, leaves: Leaves, make: Make) -> Any:
    key, begin, end = said["values"]

    def tensor(entry: Mapping[str, Any]) -> Any:
        kind = entry.get("dtype", KINDS[entry["code"]])
        shape = tuple(entry.get("shape", entry["dims"]))
        if "numpy" in entry:
            kind, shape = entry["numpy"][0], tuple(entry["numpy"][1])
        start = entry["at"]
        stop = start + ITEM_BYTES[entry["code"]] * math.prod(entry["dims"])
        piece = _piece(manifest, said["file"], start, stop, Region.whole(shape))
        pieces = (piece,) if piece.nbytes else ()
        require_complete(fqn, shape, pieces)
        stride = tuple(entry["stride"]) if entry.get("stride") else None
        stored = StoredTensor(
            entry["name"], str(kind), entry["code"], shape, pieces, stride, is_array="numpy" in entry
        )
        return make(stored, entry)

    return inflate(said["object"], manifest.values[key][begin:end], tensor, leaves)


def _piece(manifest: Manifest, number: int, start: int, stop: int, region: Region) -> Piece:
    file = manifest.files[number]
    if number < 0 or not 0 <= start <= stop <= file.size:
        raise ValueError(f"bytes {start} to {stop} do not lie in {file.name}")
    return Piece(file.name, start, stop, region)


def _no_tensor(entry: Any) -> Any:
    raise ValueError("the planner's data claims to hold a tensor")
