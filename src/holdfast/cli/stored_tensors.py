"""Where a stored tensor's bytes lie, in how many files and blocks ever, and reading them whole. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.checkpoints.find import Found
from holdfast.checkpoints.ranges import Wanted, read_ranges
from holdfast.errors import CorruptCheckpoint
from holdfast.stores.base import Store

_Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Piece:
    """A block of a tensor, row-major: bytes [start, stop) of a file. It begins at `offset` in the whole."""

    file: str
    start: int
    stop: int
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


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


def require_complete(label: str, shape: Sequence[int], pieces: Iterable[Piece]) -> None:
    """CorruptCheckpoint unless the blocks lie inside the tensor and hold all of it.

    Before any memory is asked for: what is held in files bounds what will be allocated.
    """
    held, item_sizes = 0, set()
    for piece in pieces:
        count = math.prod(piece.shape)
        bounds = zip(piece.offset, piece.shape, shape, strict=False)
        fits = len(piece.offset) == len(piece.shape) == len(shape)
        if not fits or not count or any(at < 0 or n < 0 or at + n > whole for at, n, whole in bounds):
            raise CorruptCheckpoint(f"a stored block of {label} lies outside of it")
        held += count
        item_sizes.add(piece.nbytes / count)
    if held != math.prod(shape) or len(item_sizes) > 1 or not all(size.is_integer() for size in item_sizes):
        raise CorruptCheckpoint(
            f"{label} is not complete: the checkpoint's files hold {held} of its {math.prod(shape)} numbers"
        )


def read_tensors(
    store: Store, found: Found, tensors: Iterable[StoredTensor]
) -> dict[StoredTensor, memoryview]:
    """The verified bytes of each, whole and row-major. All at once, so that no chunk is read twice."""
    wholes: dict[StoredTensor, memoryview] = {}
    wanted: list[Wanted] = []
    later: list[Callable[[], None]] = []
    for tensor in tensors:
        if tensor in wholes:
            continue
        whole: _Bytes = np.zeros(tensor.nbytes, dtype=np.uint8)
        wholes[tensor] = whole.data
        for piece in tensor.pieces:
            wanted.append(_wanted(tensor, piece, whole, later))
    read_ranges(store, found, wanted)
    for scatter in later:
        scatter()
    return wholes


def _wanted(tensor: StoredTensor, piece: Piece, whole: _Bytes, later: list[Callable[[], None]]) -> Wanted:
    item = piece.nbytes // math.prod(piece.shape)
    if _is_one_run(piece, tensor.shape):
        first = item * sum(at * n for at, n in zip(piece.offset, _strides(tensor.shape), strict=True))
        return Wanted(piece.file, piece.start, whole[first : first + piece.nbytes].data)
    # Parts of rows: they go to their places once they are here.
    block: _Bytes = np.empty(piece.nbytes, dtype=np.uint8)
    box = tuple(slice(at, at + n) for at, n in zip(piece.offset, piece.shape, strict=True))
    into, rows = whole.reshape(*tensor.shape, item)[box], block.reshape(*piece.shape, item)
    later.append(lambda: np.copyto(into, rows))
    return Wanted(piece.file, piece.start, block.data)


def _is_one_run(piece: Piece, whole: Sequence[int]) -> bool:
    """Whether the block's bytes lie side by side in the whole: single rows of all but one dimension."""
    inner = len(whole)
    while inner and piece.shape[inner - 1] == whole[inner - 1]:
        inner -= 1
    return all(n == 1 for n in piece.shape[: max(inner - 1, 0)])


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]
