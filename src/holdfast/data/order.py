"""The order of an epoch as a function of (size, seed, epoch), any part of it without the parts before.

Pure NumPy on fixed integer arithmetic: the order does not depend on a library's version, needs no memory in
proportion to the dataset, and is never stored. It must stay as it is: a resumed run relies on it.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from holdfast.data.seeding import FOR_ORDER, derive

Indices = npt.NDArray[np.int64]

# Up to here one real shuffle costs about a millisecond, and every permutation is equally likely.
_SHUFFLE_LIMIT = 1 << 16
_ROUNDS = 8


class Order(Protocol):
    """A sequence of dataset indices that can be read from any position."""

    @property
    def size(self) -> int: ...

    def read(self, start: int, stop: int) -> Indices:
        """The indices at positions [start, stop), which must lie within the order."""
        ...


class InSequence:
    def __init__(self, size: int) -> None:
        self.size = size

    def read(self, start: int, stop: int) -> Indices:
        return np.arange(start, stop, dtype=np.int64)


class Listed:
    """An order that somebody else has computed in full."""

    def __init__(self, indices: Indices) -> None:
        self._indices = indices
        self.size = len(indices)

    def read(self, start: int, stop: int) -> Indices:
        return self._indices[start:stop]


def shuffled(size: int, seed: int, epoch: int) -> Order:
    """A pseudo-random permutation of range(size), the same on every machine."""
    return shuffled_by(size, derive(FOR_ORDER, seed, epoch))


def shuffled_by(size: int, key: int) -> Order:
    if size > _SHUFFLE_LIMIT:
        return _Scrambled(size, key)
    # RandomState and not Generator: only its streams are promised never to change (NEP 19).
    legacy = np.random.RandomState([key & 0xFFFFFFFF, key >> 32])
    return Listed(legacy.permutation(size).astype(np.int64, copy=False))


class _Scrambled:
    """A keyed Feistel network on a grid of about sqrt(size) by sqrt(size) cells.

    A position is a cell (row, column). Rounds shift the column by a hash of the row, then the row by one of
    the column: each maps cells one to one, so the whole does. The few numbers that fall into the grid's last,
    unused cells are mapped again until they fall inside, which keeps it one to one. Any position costs the
    same, whatever lies before it.
    """

    def __init__(self, size: int, key: int) -> None:
        self.size = size
        rows = math.isqrt(size - 1) + 1
        # Half-width words are twice as fast, and enough for four thousand million samples.
        narrow = rows < 1 << 16
        self._word: type[np.uint32 | np.uint64] = np.uint32 if narrow else np.uint64
        self._rows = self._word(rows)
        self._columns = self._word(-(-size // rows))
        self._keys = [self._word(derive(key, i) >> (32 if narrow else 0)) for i in range(_ROUNDS)]

    def read(self, start: int, stop: int) -> Indices:
        values = self._once(np.arange(start, stop, dtype=self._word))
        outside = np.flatnonzero(values >= self.size)
        while len(outside):
            again = self._once(values[outside])
            values[outside] = again
            outside = outside[again >= self.size]
        return values.astype(np.int64)

    def _once(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        row = values // self._columns
        column = values - row * self._columns
        for i in range(0, _ROUNDS, 2):
            _shift(column, self._columns, row, self._keys[i])
            _shift(row, self._rows, column, self._keys[i + 1])
        row *= self._columns
        row += column
        return row


def _shift(part: npt.NDArray[Any], end: Any, other: npt.NDArray[Any], key: Any) -> None:
    """Move `part` round the circle of `end` places, as far as a keyed hash of `other` says. In place."""
    far = _half_word_hash(other, key)
    far *= end  # a half word times a number below a half word, so that the upper half lies below `end`
    far >>= part.dtype.type(part.itemsize * 4)
    part += far
    part -= (part >= end) * end


def _half_word_hash(values: npt.NDArray[Any], key: Any) -> npt.NDArray[Any]:
    mixed: npt.NDArray[Any] = values ^ key
    if mixed.dtype == np.uint32:
        mixed *= np.uint32(0x7FEB352D)
        mixed ^= mixed >> np.uint32(15)
        mixed *= np.uint32(0x846CA68B)
        mixed >>= np.uint32(16)
    else:
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0x94D049BB133111EB)
        mixed >>= np.uint64(32)
    return mixed
