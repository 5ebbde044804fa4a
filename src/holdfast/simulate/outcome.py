"""What a simulation measured. The shares of wall time always sum to one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.simulate.failure_models import Floats

DAY = 86400.0


@dataclass(frozen=True)
class Outcome:
    """Arrays hold one value per seed: shares of wall time, counts, seconds."""

    name: str
    horizon: float
    useful: Floats
    stall: Floats
    slowdown: Floats
    rework: Floats
    down: Floats
    failures: Floats
    saves: Floats
    bytes_written: Floats
    losses: Floats  # work lost by single failures, a sample over all seeds
    intervals: tuple[float, ...]
    limit: str = "none"

    @property
    def goodput(self) -> float:
        """Mean useful share of the time the job held its machines."""
        return float(self.useful.mean())

    @property
    def standard_error(self) -> float:
        return float(self.useful.std() / np.sqrt(len(self.useful)))

    def percentile(self, q: float) -> float:
        return float(np.percentile(self.useful, q))

    @property
    def breakdown(self) -> dict[str, float]:
        parts = {
            "useful": self.useful,
            "stall": self.stall,
            "slowdown": self.slowdown,
            "rework": self.rework,
            "restart": self.down,
        }
        return {name: float(values.mean()) for name, values in parts.items()}

    @property
    def saves_per_day(self) -> float:
        return float(self.saves.mean()) / (self.horizon / DAY)

    @property
    def bytes_per_day(self) -> float:
        return float(self.bytes_written.mean()) / (self.horizon / DAY)

    @property
    def loss_p99(self) -> float:
        """Work that all but one in a hundred failures lose less than, in seconds."""
        return float(np.percentile(self.losses, 99)) if len(self.losses) else 0.0
