"""A clock that moves only when told to."""

from __future__ import annotations


class FakeClock:
    """Satisfies Clock. `wall_skew` moves the wall clock alone, as an administrator or NTP would."""

    def __init__(self, monotonic: float = 1000.0, wall: float = 1_700_000_000.0) -> None:
        self._monotonic = monotonic
        self._wall = wall

    def monotonic(self) -> float:
        return self._monotonic

    def wall(self) -> float:
        return self._wall

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("monotonic time never goes backwards; use skew_wall")
        self._monotonic += seconds
        self._wall += seconds

    def skew_wall(self, seconds: float) -> None:
        self._wall += seconds
