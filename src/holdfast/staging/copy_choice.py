"""Copy behind the next forward and backward pass, or all at once? Measured both ways, the cheaper one wins.

Overlapping can cost more than it hides: a copy that competes for memory bandwidth slowed steps tenfold in
the field (NeMo Automodel issue 3131).
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["overlapped", "blocking"]

# Overlapping must look this much worse, beyond the usual scatter of steps, before we give it up: what a step
# cost is the difference of two noisy numbers, while the stall of a blocking copy is certain.
_TOLERANCE = 1.25
_SCATTERS = 2.0
_KEEP = 5
_PROBE_EVERY = 20


@dataclass
class CopyChoice:
    """`next_mode` says how to copy; `learn` takes what a save cost the training, in seconds."""

    forced: Mode | None = None
    _costs: dict[Mode, deque[float]] = field(
        default_factory=lambda: {"overlapped": deque(maxlen=_KEEP), "blocking": deque(maxlen=_KEEP)}
    )
    _scatter: float = 0.0
    _saves: int = 0

    @property
    def prefers_overlap(self) -> bool:
        """What `next_mode` is about to say."""
        return self._mode_of(self._saves + 1) == "overlapped"

    def next_mode(self) -> Mode:
        self._saves += 1
        return self._mode_of(self._saves)

    def _mode_of(self, save: int) -> Mode:
        if self.forced:
            return self.forced
        if len(self._costs["overlapped"]) < _KEEP:
            return "overlapped"
        if not self._costs["blocking"]:
            return "blocking"
        better, other = self._ranked()
        return other if save % _PROBE_EVERY == 0 else better

    def learn(self, mode: Mode, cost_seconds: float, scatter_seconds: float = 0.0) -> None:
        """`scatter_seconds`: how much steps without a save differ among themselves."""
        self._costs[mode].append(cost_seconds)
        self._scatter = scatter_seconds

    def _ranked(self) -> tuple[Mode, Mode]:
        overlapped = statistics.median(self._costs["overlapped"])
        blocking = statistics.median(self._costs["blocking"])
        if overlapped <= blocking * _TOLERANCE + self._scatter * _SCATTERS:
            return "overlapped", "blocking"
        return "blocking", "overlapped"

    def explain(self) -> str:
        if self.forced:
            return f"{self.forced} copy, as asked"
        parts = [
            f"{mode} {statistics.median(costs) * 1e3:.1f} ms" for mode, costs in self._costs.items() if costs
        ]
        return "copy cost: " + (", ".join(parts) if parts else "not measured yet")
