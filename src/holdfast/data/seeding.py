"""Numbers that stand for (seed, epoch, index): the only source of randomness on the data side.

Everything here is a pure function, and its answers are part of the format: a run that resumes under another
version of holdfast must get the same order and the same augmentations. Never change a constant.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB

# What a number is for. Two uses of one (seed, epoch) must never share a stream.
FOR_ORDER = 1
FOR_SAMPLES = 2
FOR_SAMPLER = 3
FOR_WORKERS = 4
FOR_ITERABLE = 5
_FOR_BATCH = 0x5851F42D4C957F2D

_loading: int | None = None
_place: int | None = None


def mix(number: int) -> int:
    """A 64-bit number in which every bit depends on every bit of `number` (the SplitMix64 finaliser)."""
    z = (number + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return z ^ (z >> 31)


def derive(*numbers: int) -> int:
    """One 64-bit number out of several; the order of the arguments matters."""
    state = 0
    for number in numbers:
        state = mix(state ^ (number & _MASK))
    return state


def index_seed(base: int, index: Any) -> int:
    """The seed of one sample. `base` stands for (seed, epoch); keys that are not numbers go by their repr."""
    try:
        return mix(base ^ mix(int(index)))
    except (TypeError, ValueError):
        text = repr(index).encode()
        return mix(base ^ mix(zlib.crc32(text) | len(text) << 32))


def index_seeds(base: int, indices: Sequence[Any]) -> list[int]:
    """`index_seed` of each, all at once where they are numbers; one by one it costs as much as seeding."""
    if set(map(type, indices)) != {int} or min(indices) < 0 or max(indices) > _MASK:
        return [index_seed(base, index) for index in indices]
    numbers = np.array(indices, dtype=np.uint64)
    _mix_in_place(numbers)
    numbers ^= np.uint64(base)
    _mix_in_place(numbers)
    seeds: list[int] = numbers.tolist()
    return seeds


# Made once: for a batch of a few dozen indices, making them would cost as much as the arithmetic.
_WORDS = tuple(np.uint64(number) for number in (_GOLDEN, 30, _MIX_1, 27, _MIX_2, 31))


def _mix_in_place(z: npt.NDArray[np.uint64]) -> None:
    golden, by_30, mix_1, by_27, mix_2, by_31 = _WORDS
    z += golden  # wraps around, as masking does in `mix`
    z ^= z >> by_30
    z *= mix_1
    z ^= z >> by_27
    z *= mix_2
    z ^= z >> by_31


def batch_seed(base: int, first_index: Any) -> int:
    """The seed of work that is done for a batch at once, such as collating. The first sample names the batch,
    because it does not depend on ranks, workers or what ran before."""
    return mix(index_seed(base, first_index) ^ _FOR_BATCH)


def placed(seed: int, place: int) -> int:
    """The seed of a sample at one place of the order: a sampler may give an index twice."""
    return mix(seed ^ mix(place))


def begin_loading(base: int | None, place: int | None = None) -> None:
    """Tell `sample_seed` which (seed, epoch) is being loaded, and which place. For the loading code only."""
    global _loading, _place
    _loading, _place = base, place


def sample_seed(index: Any) -> int:
    """The seed of sample `index` in this epoch, for datasets that keep generators of their own.

    Call it inside `__getitem__`, with the index that was asked for::

        rng = numpy.random.default_rng(holdfast.data.sample_seed(index))

    The default generators of Python, NumPy and torch need no such call: they are seeded for every sample.
    Outside a holdfast loader it answers as if the run's seed and the epoch were zero.
    """
    seed = index_seed(derive(FOR_SAMPLES, 0, 0) if _loading is None else _loading, index)
    return seed if _place is None else placed(seed, _place)
