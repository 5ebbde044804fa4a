"""The order of an epoch as a function of (size, seed, epoch), any part of it without the parts before.

Pure NumPy on fixed integer arithmetic: the order does not depend on a library's version, needs no memory in
proportion to the dataset, and is never stored. It must stay as it is: a resumed run relies on it.
"""

from __future__ import annotations

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
    key = derive(FOR_ORDER, seed, epoch)
    if size > _SHUFFLE_LIMIT:
        return _Scrambled(size, key)
    # RandomState and not Generator: only its streams are promised never to change (NEP 19).
    legacy = np.random.RandomState([key & 0xFFFFFFFF, key >> 32])
    return Listed(legacy.permutation(size).astype(np.int64, copy=False))


class _Scrambled:
    """A keyed Feistel network over the smallest power of two that holds `size`.

    Every round maps numbers one to one, so the whole does; a number that falls outside `size` is mapped again
    until it falls inside, which keeps it one to one. Any position costs the same, whatever lies before it.
    """

    def __init__(self, size: int, key: int) -> None:
        self.size = size
        bits = (size - 1).bit_length()
        # Half-width words are twice as fast, and enough for every dataset below four thousand million
        # samples.
        self._word: type[np.uint32 | np.uint64] = np.uint32 if bits <= 32 else np.uint64
        self._low_bits = self._word(bits // 2)
        self._low = self._word((1 << (bits // 2)) - 1)
        self._high = self._word((1 << (bits - bits // 2)) - 1)
        self._keys = [self._word(derive(key, i) >> (32 if bits <= 32 else 0)) for i in range(_ROUNDS)]

    def read(self, start: int, stop: int) -> Indices:
        values = self._once(np.arange(start, stop, dtype=self._word))
        outside = np.flatnonzero(values >= self.size)
        while len(outside):
            again = self._once(values[outside])
            values[outside] = again
            outside = outside[again >= self.size]
        return values.astype(np.int64)

    def _once(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        low, high = values & self._low, values >> self._low_bits
        for i in range(0, _ROUNDS, 2):
            low ^= _scatter(high, self._keys[i]) & self._low
            high ^= _scatter(low, self._keys[i + 1]) & self._high
        high <<= self._low_bits
        high |= low
        return high


def _scatter(values: npt.NDArray[Any], key: np.uint32 | np.uint64) -> npt.NDArray[Any]:
    """The upper half of a keyed mixture of `values`, each of which fills at most half a word."""
    mixed = values ^ key
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
