"""When simulated failures strike: models that draw up-times for many seeds, and published failure rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from holdfast.errors import SetupError
from holdfast.plan.model import Floats

DAY = 86400.0


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


@dataclass(frozen=True)
class Preset:
    """Failures that end a job, per 1000 days of a node (8 GPUs unless said) being up."""

    name: str
    per_1000_node_days: float
    source: str

    @property
    def node_mtbf(self) -> float:
        """Mean seconds between failures of one node."""
        return 1000 * DAY / self.per_1000_node_days


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "llama3-405b",
            3.8,
            "Llama 3 405B on 16,384 H100 for 54 days: 419 unexpected interruptions (arXiv 2407.21783)",
        ),
        Preset("meta-rsc1", 6.5, "Meta RSC-1, hardware failures over 11 months (arXiv 2410.21680)"),
        Preset(
            "meta-rsc1-all",
            22.0,
            "Meta RSC-1, failures of any cause: 21 to 24 by job size (arXiv 2410.21680)",
        ),
        Preset("opt-175b", 14.0, "OPT-175B on 1,024 A100: about 90 restarts in 56 days (metaseq chronicles)"),
        Preset("infinitehbd", 3.8, "StepFun, 400 GPU nodes for 348 days: 584 faults (InfiniteHBD-Trace)"),
        Preset(
            "byterobust",
            22.0,
            "ByteDance, 778,135 jobs in 3 months, manual stops included (arXiv 2509.16293)",
        ),
        Preset("lanl", 3.3, "LANL clusters of 512 to 1,024 CPU nodes, 1996 to 2005 (LA-UR-05-7318)"),
        Preset("titan", 1.4, "Titan, 18,688 GPUs, 2014 to 2019, per 8 GPUs (TitanGPULife)"),
        Preset(
            "spot",
            6000.0,
            "preemptible instances, one preemption per node in 4 h (SkyPilot traces: 0.7 to 17 h)",
        ),
    )
}


def preset(name: str) -> Preset:
    try:
        return PRESETS[name]
    except KeyError:
        raise SetupError(f"there is no preset {name!r}", hint=f"use one of {', '.join(PRESETS)}") from None
