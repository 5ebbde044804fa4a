"""Decides that a supervised training hangs, from its heartbeats. Pure: no clock, no processes.

A false alarm costs a restart, so the limit is learned from this training's own rhythm and is generous. A
command that never gave a sign of life is not judged at all, unless the user set limits.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.jobs.heartbeat import Beat
from holdfast.units import format_seconds

# Longer than a validation pass or a compilation that has not been seen yet.
LEAST_LIMIT = 600.0
TIMES_LONGEST_GAP = 10.0
# Imports, data, restore, first compilation: much longer than a step, and seen once per attempt.
LEAST_START_LIMIT = 1800.0
# The end of a run waits for its disk, with limits of its own; this is behind all of them.
FINISHING_LIMIT = 3600.0
# The supervisor looks about once a second. A longer absence means that it was suspended itself, with the
# training (laptop lid, scheduler): that time is no evidence.
LONGEST_LOOK = 5.0


@dataclass(frozen=True)
class HangLimits:
    """Seconds; None means learned. `start` is for the time before the first sign of life."""

    silence: float | None = None
    start: float | None = None


class Watchdog:
    """One per supervisor: what it learned in one attempt serves the next."""

    def __init__(self, limits: HangLimits | None = None) -> None:
        self._limits = limits or HangLimits()
        self._longest_gap = 0.0
        self._longest_start: float | None = None
        self._beat: Beat | None = None
        self._silence = 0.0
        self._looked: float | None = None

    def attempt_started(self, now: float) -> None:
        self._beat = None
        self._silence = 0.0
        self._looked = now

    def look(self, now: float, beat: Beat | None) -> str | None:
        """Why the training is held to hang, or None. Called about once a second."""
        if self._looked is not None:
            self._silence += min(now - self._looked, LONGEST_LOOK)
        self._looked = now
        if beat is not None and beat != self._beat:
            self._learn(self._silence)
            self._beat, self._silence = beat, 0.0
        limit = self.limit
        if limit is None or self._silence <= limit:
            return None
        silence = format_seconds(self._silence)
        if self._beat is None:
            return f"no sign of life {silence} after its start"
        return f"no sign of life for {silence}, after step {self._beat.step}"

    @property
    def limit(self) -> float | None:
        """Seconds of silence that are too many now; None if nothing is."""
        if self._beat is None:
            if self._limits.start is not None or self._longest_start is None:
                return self._limits.start
            return max(LEAST_START_LIMIT, TIMES_LONGEST_GAP * self._longest_start)
        if self._beat.phase == "finished":  # what a script does behind its training is its own affair
            return None
        learned = max(LEAST_LIMIT, TIMES_LONGEST_GAP * self._longest_gap)
        limit = learned if self._limits.silence is None else self._limits.silence
        return limit if self._beat.phase == "training" else max(limit, FINISHING_LIMIT)

    def _learn(self, silence: float) -> None:
        if self._beat is None:
            self._longest_start = max(self._longest_start or 0.0, silence)
        elif self._beat.phase == "training":
            self._longest_gap = max(self._longest_gap, silence)
