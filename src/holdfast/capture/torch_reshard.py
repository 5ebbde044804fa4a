"""A state that several ranks saved, for a reader with another number of ranks or another sharding.

Works out from the ranks' records which bytes of which file this rank needs; whoever reads them fills the
memory; then the states are built. A tensor that was saved in parts comes back whole, or as the part that
the live tensor in its place holds.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from holdfast.capture.torch_leaves import TORCH_LEAVES, dtype_from_name, dtype_of_code, leaf_from_bytes
from holdfast.capture.torch_plan import METADATA_KEY
from holdfast.capture.torch_shards import Region, is_sharded, like, region_of
from holdfast.errors import CorruptCheckpoint
from holdfast.format.image import ImageLayout
from holdfast.format.rank_record import RankRecord
from holdfast.format.tree import decode_key, inflate, show_path

# What stands now where a stored tensor belongs, by the path inside the state; None if nothing does.
Live = Callable[[tuple[Any, ...], Sequence[int]], Any]


@dataclass(frozen=True)
class Piece:
    """A stored block of a tensor: bytes [start, stop) of a file."""

    file: str
    start: int
    stop: int
    region: Region


@dataclass
class Need:
    """Bytes to be read, and what they become."""

    finish: Callable[[], Any]
    wanted: list[tuple[str, int, memoryview]] = field(default_factory=list)


@dataclass(frozen=True)
class _Entry:
    path: tuple[Any, ...]
    said: dict[str, Any]


class SavedState:
    """What `records`, one for every rank that saved, hold between them, as seen from rank `base`."""

    def __init__(self, records: Sequence[RankRecord], base: int) -> None:
        self._values = records[base].values
        self._pieces: dict[tuple[str, str], list[Piece]] = defaultdict(list)
        self._codes: dict[tuple[str, str], str] = {}
        self._skeletons: dict[str, Any] = {}
        self._entries: list[_Entry] = []
        for record in records:
            for file, layout in record.layouts().items():
                for key, node in _skeletons(layout, file).items():
                    if record.rank == base:
                        self._skeletons[key] = node
                    self._collect(key, node, file, layout, is_base=record.rank == base)

    def _collect(self, key: str, node: Any, file: str, layout: ImageLayout, *, is_base: bool) -> None:
        for path, said in _tensor_entries(node, (key,)):
            name = said["name"]
            if is_base:
                self._entries.append(_Entry(path, said))
            if name not in layout.spans or not (is_base or "offset" in said or "shared" in said):
                continue
            start, stop = layout.spans[name]
            spec = layout.tensors[name]
            shape = tuple(said.get("shape", spec.shape))
            region = Region(tuple(said.get("offset", (0,) * len(shape))), shape)
            pieces = self._pieces[key, name]
            # A tied tensor appears twice in one skeleton, a copy of a block in two files.
            if all(known.region != region for known in pieces):
                pieces.append(Piece(file, start, stop, region))
                self._codes[key, name] = spec.dtype

    @property
    def keys(self) -> list[str]:
        return list(self._skeletons)

    def needs(self, live: Live, keys: Sequence[str] | None = None) -> dict[int, Need]:
        """What to read for these tracked objects (all, if None), by the identity of the skeleton's entry."""
        found: dict[tuple[str, str], Need] = {}
        needs = {}
        for entry in self._entries:
            key, name = entry.path[0], entry.said["name"]
            if keys is not None and key not in keys:
                continue
            # One object per name: what was tied when it was saved is tied again.
            if (key, name) not in found:
                found[key, name] = self._need(entry, live)
            needs[id(entry.said)] = found[key, name]
        return needs

    def build(self, needs: Mapping[int, Need]) -> dict[str, Any]:
        """The states, once every need has been read."""
        built: dict[int, Any] = {}

        def tensor(said: dict[str, Any]) -> Any:
            need = needs[id(said)]
            if id(need) not in built:
                built[id(need)] = need.finish()
            return built[id(need)]

        wanted = {entry.path[0] for entry in self._entries if id(entry.said) in needs}
        without_tensors = {entry.path[0] for entry in self._entries}
        return {
            key: inflate(node, self._values[key], tensor, TORCH_LEAVES)
            for key, node in self._skeletons.items()
            if key in wanted or key not in without_tensors
        }

    def _need(self, entry: _Entry, live: Live) -> Need:
        key, said = entry.path[0], entry.said
        pieces = self._pieces[key, said["name"]]
        if not pieces:
            raise CorruptCheckpoint(f"{show_path(entry.path)} is in none of the checkpoint's files")
        code = self._codes[key, said["name"]]
        whole = tuple(said["global"]) if "global" in said else pieces[0].region.shape
        if "numpy" in said or not (
            "global" in said or "shared" in said or is_sharded(live(entry.path, whole))
        ):
            return _plain(pieces[0], said, code)
        dtype = dtype_from_name(said["dtype"]) if "dtype" in said else dtype_of_code(code)
        target = live(entry.path, whole)
        sharded = is_sharded(target) and tuple(target.shape) == whole
        region = region_of(target, said["name"]) if sharded else Region((0,) * len(whole), whole)
        local = torch.empty(region.shape, dtype=dtype)
        finish = _filling(local, region, pieces, show_path(entry.path))
        stride = said.get("stride") if not sharded else None

        def made() -> Any:
            finish.finish()
            if stride is not None:
                return torch.empty_strided(local.shape, stride, dtype=dtype).copy_(local)
            return like(local, target) if sharded else local

        return Need(made, finish.wanted)


def _plain(piece: Piece, said: dict[str, Any], code: str) -> Need:
    """A tensor or an array of one rank, whole."""
    raw = torch.empty(piece.stop - piece.start, dtype=torch.uint8)
    shape = said.get("shape", piece.region.shape)
    need = Need(lambda: leaf_from_bytes(said, code, shape, raw))
    if raw.numel():
        need.wanted.append((piece.file, piece.start, _memory(raw)))
    return need


def _filling(local: torch.Tensor, region: Region, pieces: Sequence[Piece], where: str) -> Need:
    """Fill `local`, which holds `region` of a tensor, from the stored pieces that meet it."""
    later: list[Callable[[], Any]] = []
    need = Need(lambda: [copy() for copy in later])
    covered = 0
    for piece in pieces:
        both = region.meet(piece.region) if region.shape else piece.region
        if both is None:
            continue
        covered += math.prod(both.shape)
        into = local[both.inside(region)] if region.shape else local
        first, count = _span_within(both, piece.region)
        start = piece.start + first * local.itemsize
        if into.is_contiguous() and count == math.prod(both.shape):
            need.wanted.append((piece.file, start, _memory(into)))
        else:
            # Rows of the stored block with gaps between them: read what encloses them, then pick.
            raw = torch.empty(count, dtype=local.dtype)
            need.wanted.append((piece.file, start, _memory(raw)))
            rows = torch.as_strided(raw, both.shape, _strides(piece.region.shape))
            later.append(lambda into=into, rows=rows: into.copy_(rows))  # type: ignore[misc]
    if covered != math.prod(region.shape):
        raise CorruptCheckpoint(
            f"{where} is not complete: the checkpoint's files hold {covered} of its"
            f" {math.prod(region.shape)} numbers"
        )
    return need


def _span_within(block: Region, outer: Region) -> tuple[int, int]:
    """Where a block begins in the row-major memory of `outer`, and how many numbers lie up to its last."""
    strides = _strides(outer.shape)
    first = sum((a - b) * s for a, b, s in zip(block.offset, outer.offset, strides, strict=True))
    return first, 1 + sum((n - 1) * s for n, s in zip(block.shape, strides, strict=True))


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def _memory(tensor: torch.Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")


def _skeletons(layout: ImageLayout, file: str) -> dict[str, Any]:
    try:
        found = json.loads(layout.metadata[METADATA_KEY])
        if not isinstance(found, dict):
            raise ValueError("not a table")
        return found
    except (KeyError, ValueError) as error:
        raise CorruptCheckpoint(f"{file} has no readable skeleton: {error!r}") from error


def _tensor_entries(node: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    if not isinstance(node, dict):
        return
    for kind, content in node.items():
        if kind == "tensor":
            yield path, content
        elif kind == "wrapped":
            yield from _tensor_entries(content, path)
        elif kind in ("dict", "odict", "counter", "defaultdict"):
            for key, item in content:
                yield from _tensor_entries(item, (*path, decode_key(key, TORCH_LEAVES)))
        elif kind != "with":
            for index, item in enumerate(content):
                yield from _tensor_entries(item, (*path, index))
