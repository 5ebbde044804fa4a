"""When simulated failures strike: draws of up-times, for many seeds at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class FailureModel(Protocol):
    @property
    def mtbf(self) -> float:
        """Mean seconds between failures of the whole job."""
        ...

    def draw(self, random: np.random.Generator, failures: int, seeds: int, first: int = 0) -> Floats:
        """Seconds until each of the next `failures` (rows) for every seed; `first` were drawn before."""
        ...


@dataclass(frozen=True)
class Poisson:
    """A constant failure rate: what the closed forms assume."""

    mtbf: float

    def draw(self, random: np.random.Generator, failures: int, seeds: int, first: int = 0) -> Floats:
        return random.exponential(self.mtbf, (failures, seeds))


@dataclass(frozen=True)
class Weibull:
    """Failures that cluster: `shape` below 1, as in all public traces (0.62 to 0.89)."""

    mtbf: float
    shape: float

    def draw(self, random: np.random.Generator, failures: int, seeds: int, first: int = 0) -> Floats:
        scale = self.mtbf / math.gamma(1 + 1 / self.shape)
        return scale * random.weibull(self.shape, (failures, seeds))


@dataclass(frozen=True)
class Resampled:
    """Up-times drawn from those that were seen."""

    up_times: tuple[float, ...]

    @property
    def mtbf(self) -> float:
        return sum(self.up_times) / len(self.up_times)

    def draw(self, random: np.random.Generator, failures: int, seeds: int, first: int = 0) -> Floats:
        return random.choice(np.asarray(self.up_times), size=(failures, seeds))


@dataclass(frozen=True)
class Replayed:
    """The very up-times that were seen, in order and round again; the same for every seed."""

    up_times: tuple[float, ...]

    @property
    def mtbf(self) -> float:
        return sum(self.up_times) / len(self.up_times)

    def draw(self, random: np.random.Generator, failures: int, seeds: int, first: int = 0) -> Floats:
        del random
        order = np.arange(first, first + failures) % len(self.up_times)
        column = np.asarray(self.up_times, dtype=np.float64)[order]
        return np.repeat(column[:, None], seeds, axis=1)
