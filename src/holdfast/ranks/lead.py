"""How many steps ahead a boundary must be announced so that every rank hears of it in time."""

from __future__ import annotations

from collections.abc import Sequence

# So often in a row must half of the lead have been to spare before some of it is given back.
CALM = 8


class Lead:
    """Starts at one step: ranks that wait for each other in every step are never further apart."""

    def __init__(self) -> None:
        self.steps = 1
        self._calm = 0

    def learn(self, proposed_at: int, ranks_at: Sequence[int]) -> None:
        """Where the other ranks were when they heard what rank 0 had proposed at the step `proposed_at`."""
        ahead = max(ranks_at, default=proposed_at) - proposed_at
        if ahead >= self.steps:
            self.steps, self._calm = 2 * ahead, 0
        elif 2 * ahead <= self.steps:
            self._calm += 1
            if self._calm >= CALM and self.steps > 1:
                self.steps, self._calm = self.steps - max(1, self.steps // 4), 0
        else:
            self._calm = 0
