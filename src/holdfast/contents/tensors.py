"""Where a stored tensor's bytes lie, in how many files and blocks ever, and reading them whole. No torch.

What a skeleton and an image's header say about a tensor comes together here: of one rank, or of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from holdfast.checkpoints.find import Found
from holdfast.checkpoints.ranges import Wanted, read_ranges
from holdfast.contents.regions import Bytes, Filling, Piece, Region, fill, require_complete
from holdfast.errors import CorruptCheckpoint
from holdfast.format.image import ImageLayout
from holdfast.stores.base import Store

# safetensors code -> the name that training knows it by.
KINDS = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32",
    "F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """`kind` is the type it had in training, such as "float32", `code` the one that image files know;
    `is_array` tells NumPy's arrays from tensors. What ranks hold in parts has no strides."""

    name: str
    kind: str
    code: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    stride: tuple[int, ...] | None = None
    strides_known: bool = True
    is_array: bool = False

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def files(self) -> list[str]:
        return sorted({piece.file for piece in self.pieces})

    @property
    def place(self) -> tuple[str, int]:
        """Where its first byte lies; tensors are best read in this order."""
        return (self.pieces[0].file, self.pieces[0].start) if self.pieces else ("", 0)

    def __str__(self) -> str:
        return f"{self.kind}[{', '.join(map(str, self.shape))}]"


def read_tensors(
    store: Store, found: Found, tensors: Iterable[StoredTensor]
) -> dict[StoredTensor, memoryview]:
    """The verified bytes of each, whole and row-major. All at once, so that no chunk is read twice."""
    wholes: dict[StoredTensor, memoryview] = {}
    fillings: list[Filling] = []
    for tensor in tensors:
        if tensor in wholes:
            continue
        whole: Bytes = np.zeros(tensor.nbytes, dtype=np.uint8)
        wholes[tensor] = whole.data
        if tensor.pieces:
            item = tensor.nbytes // math.prod(tensor.shape)
            fillings.append(fill(whole, Region.whole(tensor.shape), tensor.pieces, item, tensor.name))
    wanted: list[Wanted] = [want for filling in fillings for want in filling.wanted]
    read_ranges(store, found, wanted)
    for filling in fillings:
        filling.finish()
    return wholes


@dataclass(frozen=True)
class Common:
    """Stands for a tensor that several ranks hold together, until the blocks of all of them are known.
    `ranks` are those that do, where they are not all."""

    key: str
    name: str
    ranks: str | None = None


@dataclass
class _Gathered:
    said: Mapping[str, Any]
    code: str = ""
    shape: tuple[int, ...] = ()
    pieces: dict[Region, Piece] = field(default_factory=dict)


class CommonTensors:
    """The tensors that ranks share or hold parts of, collected rank by rank."""

    def __init__(self) -> None:
        self._found: dict[Common, _Gathered] = {}
        self._wholes: dict[Common, StoredTensor] = {}

    def add(self, key: str, said: Mapping[str, Any], file: str, layout: ImageLayout) -> Common | None:
        """Take in what one rank says and holds; None if the tensor is that rank's alone."""
        if "offset" not in said and "shared" not in said:
            return None
        common = Common(key, said["name"], said.get("ranks"))
        gathered = self._found.setdefault(common, _Gathered(said))
        if common.name in layout.spans:
            spec = layout.tensors[common.name]
            piece = piece_of(said, file, layout)
            gathered.code, gathered.shape = spec.dtype, piece.region.shape
            # A tied tensor appears twice in one skeleton, a copy of a block in two files.
            if piece.nbytes:
                gathered.pieces.setdefault(piece.region, piece)
        return common

    def whole(self, common: Common) -> StoredTensor:
        if common not in self._wholes:
            try:
                self._wholes[common] = self._put_together(common)
            except (TypeError, ValueError, KeyError) as error:
                said = f"{common.key}/{common.name}"
                raise CorruptCheckpoint(f"{said} does not match its skeleton: {error!r}") from error
        return self._wholes[common]

    def _put_together(self, common: Common) -> StoredTensor:
        gathered = self._found[common]
        said, pieces, label = gathered.said, gathered.pieces.values(), f"{common.key}/{common.name}"
        if not gathered.code:
            raise CorruptCheckpoint(f"{label} is in none of the checkpoint's files")
        shape = tuple(said.get("global", gathered.shape))
        require_complete(label, shape, pieces)
        return StoredTensor(
            common.name,
            str(said.get("dtype", KINDS[gathered.code])),
            gathered.code,
            shape,
            tuple(sorted(pieces, key=lambda piece: piece.region.offset)),
            tuple(said["stride"]) if said.get("stride") and "global" not in said else None,
            strides_known="global" not in said,
        )


def piece_of(said: Mapping[str, Any], file: str, layout: ImageLayout) -> Piece:
    """The block of a tensor that a file holds, as its skeleton and its header say."""
    name = said["name"]
    shape = tuple(said.get("shape", layout.tensors[name].shape))
    return Piece(file, *layout.spans[name], Region(tuple(said.get("offset", (0,) * len(shape))), shape))


def tensor_of_one_rank(said: Mapping[str, Any], file: str, layout: ImageLayout) -> StoredTensor:
    name = said["name"]
    (start, stop), spec = layout.spans[name], layout.tensors[name]
    kind, shape = said.get("dtype", KINDS[spec.dtype]), tuple(said.get("shape", spec.shape))
    if "numpy" in said:
        kind, shape = said["numpy"][0], tuple(said["numpy"][1])
    piece = Piece(file, start, stop, Region.whole(shape))
    pieces = (piece,) if piece.nbytes else ()
    if pieces and (not math.prod(shape) or piece.nbytes % math.prod(shape)):
        raise CorruptCheckpoint(f"{name} in {file} has {piece.nbytes} bytes and the shape {list(shape)}")
    stride = tuple(said["stride"]) if said.get("stride") else None
    return StoredTensor(name, str(kind), spec.dtype, shape, pieces, stride, is_array="numpy" in said)
