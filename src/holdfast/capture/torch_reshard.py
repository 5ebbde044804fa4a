"""A state that several ranks saved, for a reader with another number of ranks or another sharding.

Works out from the ranks' records which bytes of which file this rank needs; whoever reads them fills the
memory; then the states are built. A tensor that was saved in parts comes back whole, or as the part that
the live tensor in its place holds.

The record of one rank says what there is; the others are taken in one by one, until nothing is missing: a
rank that is what it was needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from holdfast.capture.torch_leaves import TORCH_LEAVES, dtype_from_name, dtype_of_code, leaf_from_bytes
from holdfast.capture.torch_reader import Reader
from holdfast.capture.torch_shards import is_sharded, like, region_of
from holdfast.checkpoints.ranges import Wanted
from holdfast.contents.records import Entry, tensor_entries
from holdfast.contents.regions import Piece, Region, fill
from holdfast.contents.tensors import piece_of
from holdfast.errors import CorruptCheckpoint, IncompatibleState
from holdfast.format.image import ImageLayout
from holdfast.format.rank_record import RankRecord
from holdfast.format.rank_sets import parse_ranks
from holdfast.format.tree import inflate, show_path, skeletons

# Object, name, and the ranks that hold it together where those are not all of them.
Id = tuple[str, str, str | None]


@dataclass(frozen=True)
class _Entry:
    path: tuple[Any, ...]
    said: Entry

    @property
    def id(self) -> Id:
        return self.path[0], self.said["name"], self.said.get("ranks")

    @property
    def is_common(self) -> bool:
        """Held by several ranks, in parts or alike."""
        return "global" in self.said or "shared" in self.said


@dataclass
class _Want:
    """One tensor, and the blocks of it that were found so far. `region` is what this rank needs of it; None
    where its shape is not known before it is found, as it is whole then."""

    entry: _Entry
    region: Region | None
    target: Any
    pieces: dict[Region, Piece] = field(default_factory=dict)
    code: str = ""
    missing: int = 1

    def offer(self, piece: Piece, code: str) -> None:
        if (known := self.pieces.get(piece.region)) is not None:
            # A tied tensor appears twice in one skeleton.
            if known != piece:
                raise IncompatibleState(
                    f"{show_path(self.entry.path)} is in {known.file} and in {piece.file}, and nothing says "
                    "which of them this rank held",
                    hint="it was saved by an older holdfast from several process groups; an older checkpoint "
                    "of a single group, or weights kept elsewhere, are the way back",
                )
            return
        if self.region is None:
            self.missing = 0
        else:
            both = self.region.meet(piece.region)
            if both is None:
                return
            self.missing -= both.count
        self.pieces[piece.region], self.code = piece, code


@dataclass
class Need:
    """Bytes to be read, and what they become."""

    finish: Callable[[], Any]
    wanted: list[Wanted]


class SavedState:
    """What the ranks of a checkpoint hold between them, as `reader` needs it. `base` is the record of the
    rank it was, or the one whose place it takes."""

    def __init__(self, base: RankRecord, reader: Reader, keys: Sequence[str] | None = None) -> None:
        self._values = base.values
        self._reader = reader
        self._skeletons: dict[str, Any] = {}
        self._entries: list[_Entry] = []
        self._wants: dict[Id, _Want] = {}
        layouts = base.layouts()
        for file, layout in layouts.items():
            for key, node in skeletons(layout.metadata, file).items():
                self._skeletons[key] = node
                entries = [_Entry(path, said) for path, said in tensor_entries(node, (key,), TORCH_LEAVES)]
                self._entries += entries
                for entry in entries if keys is None or key in keys else ():
                    # One object per name: what was tied when it was saved is tied again.
                    if entry.id not in self._wants:
                        self._wants[entry.id] = self._want(entry, base, file, layout)
        self._open: dict[Id, _Want] = {}
        self._forget_complete(self._wants)
        self._take(base, layouts)

    @property
    def sources(self) -> frozenset[int]:
        """The ranks that may still hold something that is missing; empty when nothing is."""
        groups = {want.entry.said.get("ranks") for want in self._open.values()}
        everybody = range(self._reader.saved_world)
        return frozenset().union(*(everybody if g is None else parse_ranks(g) for g in groups))

    @property
    def likely_sources(self) -> list[int]:
        """Of these, the ranks that hold the same blocks now, and those that had the wanted rows if the saved
        tensors were divided as torch divides them: mostly nobody else is needed."""
        found: dict[int, None] = {}
        seen: set[tuple[object, ...]] = set()
        for want in self._open.values():
            found.update(dict.fromkeys(self._reader.copies_of(want.target)))
            said = want.entry.said
            kind = (said.get("ranks"), want.region, tuple(said.get("global", ())))
            if want.region is not None and kind not in seen:
                seen.add(kind)
                group = parse_ranks(kind[0]) if "ranks" in said else range(self._reader.saved_world)
                found.update(dict.fromkeys(_holders(want.region, kind[2], group)))
        sources = self.sources
        return [rank for rank in found if rank in sources]

    def take(self, record: RankRecord) -> None:
        """What this rank holds of what is missing."""
        self._take(record, record.layouts())

    def _take(self, record: RankRecord, layouts: Mapping[str, ImageLayout]) -> None:
        missing = {name for _, name, _ in self._open}
        for file, layout in layouts.items():
            if missing.isdisjoint(layout.spans):
                continue
            for key, node in skeletons(layout.metadata, file).items():
                for path, said in tensor_entries(node, (key,), TORCH_LEAVES):
                    entry = _Entry(path, said)
                    if entry.id in self._open and entry.is_common and said["name"] in layout.spans:
                        self._open[entry.id].offer(
                            piece_of(said, file, layout), layout.tensors[said["name"]].dtype
                        )
        self._forget_complete(self._open)

    def _forget_complete(self, wants: Mapping[Id, _Want]) -> None:
        self._open = {name: want for name, want in wants.items() if want.missing > 0}

    def _want(self, entry: _Entry, base: RankRecord, file: str, layout: ImageLayout) -> _Want:
        said, mine = entry.said, None
        if not entry.is_common:
            if said["name"] not in layout.spans:
                raise CorruptCheckpoint(f"{show_path(entry.path)} is in none of the checkpoint's files")
            mine = piece_of(said, file, layout)
        whole = tuple(said["global"]) if "global" in said else mine.region.shape if mine else None
        target = self._reader.live(entry.path, whole)
        self._reader.require_unambiguous(entry.path, said, target, base.rank)
        region = None if whole is None else _part(target, whole, said["name"])[0]
        want = _Want(entry, region, target, missing=1 if region is None else region.count)
        if mine is not None:
            want.pieces[mine.region], want.code, want.missing = mine, layout.tensors[said["name"]].dtype, 0
        return want

    def needs(self) -> dict[int, Need]:
        """What to read, by the identity of the skeleton's entry."""
        made = {name: self._need(want) for name, want in self._wants.items()}
        return {id(entry.said): made[entry.id] for entry in self._entries if entry.id in made}

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

    def _need(self, want: _Want) -> Need:
        said, where = want.entry.said, show_path(want.entry.path)
        pieces = want.pieces.values()
        if want.region is None and not pieces:
            raise CorruptCheckpoint(f"{where} is in none of the checkpoint's files")
        target = want.target
        if "numpy" in said or not (want.entry.is_common or is_sharded(target)):
            return _whole_of_one(next(iter(pieces)), said, want.code)
        whole = tuple(said["global"]) if "global" in said else next(iter(pieces)).region.shape
        if want.region is None:
            target = self._reader.live(want.entry.path, whole)
        region, sharded = _part(target, whole, said["name"])
        dtype = _dtype(said, want.code, target)
        local = torch.empty(region.shape, dtype=dtype)
        filled = fill(_memory(local), region, pieces, local.itemsize, where)
        stride = said.get("stride") if not sharded else None

        def made() -> Any:
            filled.finish()
            if stride is not None:
                return torch.empty_strided(local.shape, stride, dtype=dtype).copy_(local)
            return like(local, target) if sharded else local

        return Need(made, filled.wanted)


def _whole_of_one(piece: Piece, said: Entry, code: str) -> Need:
    """A tensor or an array of one rank, whole."""
    raw = torch.empty(piece.nbytes, dtype=torch.uint8)
    shape = said.get("shape", piece.region.shape)
    wanted = [Wanted(piece.file, piece.start, _memory(raw).data)] if raw.numel() else []
    return Need(lambda: leaf_from_bytes(said, code, shape, raw), wanted)


def _memory(tensor: torch.Tensor) -> Any:
    """Its bytes, as NumPy sees them."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _holders(region: Region, whole: Sequence[int], ranks: Sequence[int]) -> Iterator[int]:
    """Who held this block of a tensor of shape `whole`, if it was cut along one dimension."""
    for at, length, size in zip(region.offset, region.shape, whole, strict=True):
        if length and length != size:
            each = -(-size // len(ranks))
            for number in range(at // each, (at + length - 1) // each + 1):
                yield ranks[number]


def _part(target: Any, whole: tuple[int, ...], name: str) -> tuple[Region, bool]:
    """What is needed of a tensor of this shape, and whether that is the part which the live one holds."""
    if is_sharded(target) and tuple(target.shape) == whole:
        return region_of(target, name), True
    return Region.whole(whole), False


def _dtype(said: Mapping[str, Any], code: str, target: Any) -> torch.dtype:
    if "dtype" in said:
        return dtype_from_name(said["dtype"])
    # A rank that holds nothing of it needs no file that would tell.
    return dtype_of_code(code) if code else target.dtype
