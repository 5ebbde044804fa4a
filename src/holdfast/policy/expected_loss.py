"""What a failure would cost now: the work since the last save, and the expected loss that has piled up.

A save that fails puts both back, as if it had never been taken.
"""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_RETRY_PAUSE = 300.0


@dataclass(frozen=True)
class _Before:
    """What a save replaced."""

    since: float
    debt: float
    at: float


class ExpectedLoss:
    def __init__(self) -> None:
        self.since = 0.0
        self.debt = 0.0
        self.retry_at = 0.0
        self._pending: dict[int, _Before] = {}
        self._failed_in_a_row = 0

    @property
    def pending(self) -> bool:
        """Whether a save has been taken that is not known to be durable or lost."""
        return bool(self._pending)

    def start(self, now: float) -> None:
        self.since = self.retry_at = now
        self.debt = 0.0

    def grow(self, before: float, now: float, hazard: float) -> float:
        """Add what was at risk between two boundaries, at its middle. Returns the age of the last save."""
        age = now - self.since
        passed = now - before
        if passed > age:
            passed = age
        self.debt += hazard * (age - passed / 2) * passed
        return age

    def save_started(self, at: float, step: int) -> None:
        self._pending[step] = _Before(self.since, self.debt, at)
        self.since = at
        self.debt = 0.0

    def save_committed(self, now: float, step: int, stall: float) -> None:
        before = self._pending.pop(step, None)
        if before is not None and before.at == self.since:
            self.since = min(now, self.since + stall)  # no work was done meanwhile, so none is at risk
        self._failed_in_a_row = 0
        self.retry_at = 0.0

    def save_failed(self, now: float, step: int, hazard: float, pause: float) -> None:
        """Put the debt back, and do not ask again before a pause that doubles each time.

        What is unsaved is at risk, so the first retry comes soon; but a store that is full or gone must
        not be allowed to stall training at every step.
        """
        self._failed_in_a_row += 1
        self.retry_at = now + min(max(pause, 0.5 * 2.0**self._failed_in_a_row), LONGEST_RETRY_PAUSE)
        before = self._pending.pop(step, None)
        if before is not None and before.at == self.since:  # no later save has been taken meanwhile
            grown = (now - before.since) ** 2 - (before.at - before.since) ** 2
            self.debt = before.debt + hazard * grown / 2
            self.since = before.since
