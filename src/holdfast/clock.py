"""Time, as a thing that is passed in. Nothing in holdfast reads a clock except through this."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that never go backwards; for durations and decisions."""
        ...

    def wall(self) -> float:
        """Seconds since 1970; for people to read, never for ordering."""
        ...


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
