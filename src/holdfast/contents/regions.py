"""Blocks of a tensor: which bytes of which files make one, and how they are put together in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.checkpoints.ranges import Wanted
from holdfast.errors import CorruptCheckpoint

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Region:
    """A block of a tensor: where it begins and how long it is in every dimension."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Region:
        return cls((0,) * len(shape), tuple(shape))

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def meet(self, other: Region) -> Region | None:
        """What lies in both; None if nothing does."""
        begin = tuple(map(max, self.offset, other.offset))
        ends = [
            min(a + n, b + m)
            for a, n, b, m in zip(self.offset, self.shape, other.offset, other.shape, strict=True)
        ]
        shape = tuple(end - start for start, end in zip(begin, ends, strict=True))
        return None if any(n <= 0 for n in shape) else Region(begin, shape)

    def inside(self, outer: Region) -> tuple[slice, ...]:
        """Where this block lies in a tensor that holds `outer`."""
        pairs = zip(self.offset, self.shape, outer.offset, strict=True)
        return tuple(slice(a - base, a - base + n) for a, n, base in pairs)

    def span_within(self, outer: Region) -> tuple[int, int]:
        """Where this block begins in the row-major memory of `outer`, and how many numbers lie from its first
        up to its last."""
        if not self.count:
            return 0, 0
        strides = row_major(outer.shape)
        first = sum((a - b) * s for a, b, s in zip(self.offset, outer.offset, strides, strict=True))
        return first, 1 + sum((n - 1) * s for n, s in zip(self.shape, strides, strict=True))


@dataclass(frozen=True)
class Piece:
    """A stored block of a tensor, row-major: bytes [start, stop) of a file."""

    file: str
    start: int
    stop: int
    region: Region

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


@dataclass
class Filling:
    """What must be read, and what is left to do once it has been."""

    wanted: list[Wanted] = field(default_factory=list)
    _later: list[Callable[[], None]] = field(default_factory=list)

    def finish(self) -> None:
        for copy in self._later:
            copy()


def row_major(shape: Sequence[int]) -> list[int]:
    """Strides, in numbers."""
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def fill(memory: Bytes, region: Region, pieces: Iterable[Piece], item: int, where: str) -> Filling:
    """Fill `memory`, which holds `region` of a tensor, `item` bytes a number, from pieces that meet it."""
    filling, covered = Filling(), 0
    rows_of_region: npt.NDArray[Any] = memory.reshape(*region.shape, item)
    for piece in pieces:
        both = region.meet(piece.region)
        if both is None:
            continue
        covered += both.count
        into = rows_of_region[both.inside(region)]
        first, count = both.span_within(piece.region)
        start = piece.start + first * item
        if into.flags.c_contiguous and count == both.count:
            filling.wanted.append(Wanted(piece.file, start, into.reshape(-1).data))
        else:
            # Rows with gaps between them, there or here: read what encloses them, then pick.
            raw: Bytes = np.empty(count * item, np.uint8)
            filling.wanted.append(Wanted(piece.file, start, raw.data))
            strides = [step * item for step in row_major(piece.region.shape)]
            rows = np.lib.stride_tricks.as_strided(raw, (*both.shape, item), (*strides, 1))
            filling._later.append(lambda into=into, rows=rows: np.copyto(into, rows))  # type: ignore[misc]
    if covered != region.count:
        raise incomplete(where, covered, region.count)
    return filling


def require_complete(label: str, shape: Sequence[int], pieces: Iterable[Piece]) -> None:
    """CorruptCheckpoint unless the blocks lie inside the tensor and hold all of it.

    Before any memory is asked for: what is held in files bounds what will be allocated.
    """
    held, item_sizes = 0, set()
    for piece in pieces:
        block = piece.region
        bounds = zip(block.offset, block.shape, shape, strict=False)
        fits = len(block.offset) == len(block.shape) == len(shape)
        if not fits or not block.count or any(at < 0 or n < 0 or at + n > whole for at, n, whole in bounds):
            raise CorruptCheckpoint(f"a stored block of {label} lies outside of it")
        held += block.count
        item_sizes.add(piece.nbytes / block.count)
    if held != math.prod(shape) or len(item_sizes) > 1 or not all(size.is_integer() for size in item_sizes):
        raise incomplete(label, held, math.prod(shape))


def incomplete(label: str, held: int, count: int) -> CorruptCheckpoint:
    return CorruptCheckpoint(
        f"{label} is not complete: the checkpoint's files hold {held} of its {count} numbers"
    )
