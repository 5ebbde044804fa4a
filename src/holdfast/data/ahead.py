"""How many batches a loop has fetched that it has not trained on: prefetchers look one ahead, or several.

Counted by the steps between two batches: an ordinary loop takes one per step, one that accumulates takes n,
and one that looks ahead takes more before its first step than before the others. Pure.
"""

from __future__ import annotations

from typing import Any


class Ahead:
    def __init__(self) -> None:
        self.known = 0
        self._is_settled = False
        self._per_step = 1
        # Another thread reads, as fast as its queue lets it: what it hands out says nothing of steps.
        self.is_elsewhere = False
        self.begin()

    def begin(self) -> None:
        """A new pass, or a pass that is taken up."""
        self._handed = 0
        self._first_step = 0
        self._last_step = 0
        self._intervals: list[int] = []
        self._count = 0

    def handed(self, step: int) -> None:
        """A batch goes out, `step` steps being complete."""
        if self._handed == 0:
            self._first_step = self._last_step = step
        elif step != self._last_step:
            if len(self._intervals) < 3:
                self._intervals.append(self._count)
                self._learn()
            self._count, self._last_step = 0, step
        self._handed += 1
        self._count += 1

    def _learn(self) -> None:
        if len(self._intervals) == 3 and self._intervals[1] == self._intervals[2]:
            first, self._per_step, _ = self._intervals
            self.known = max(0, first - self._per_step)
            self._is_settled = True

    def untrained(self, step: int) -> int:
        """Batches that were handed out and that no complete step has used."""
        if self.is_elsewhere:
            # One batch per step, as far as anybody can tell; `is_sure` says that nobody can.
            return max(0, self._handed - (step - self._first_step))
        if not self.known:
            return 0
        return max(0, self._handed - self._per_step * (step - self._first_step))

    def is_sure(self, step: int) -> bool:
        """Whether `untrained` is known, and not only taken to be nothing: more batches than steps are what
        looking ahead and accumulating have in common, until a few steps have told them apart."""
        if self.is_elsewhere:
            return False
        return self._is_settled or self._handed <= step - self._first_step

    def state(self) -> dict[str, Any]:
        return {"known": self.known, "per_step": self._per_step}

    def load(self, state: dict[str, Any]) -> None:
        self.known, self._per_step = state["known"], state["per_step"]
        self._is_settled = not state.get("unsure", False)
