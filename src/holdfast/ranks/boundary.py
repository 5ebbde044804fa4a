"""What the training thread of a rank and its listener share: where training is, and where it is expected."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Agreed:
    """What everybody does at one step boundary."""

    number: int
    kind: str
    step: int
    reason: str
    detail: Mapping[str, Any] = field(default_factory=dict)


class Boundary:
    """A rank answers "in time" only after its training thread can no longer slip past the step: both look at
    the step and at what is expected under one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._step = -1
        # The training thread looks closer from this step on.
        self._attend = math.inf
        self._expected: deque[Agreed] = deque()
        self._agreed: set[int] = set()
        self._nudged = False

    def reach(self, step: int) -> bool:
        """The training thread is at `step`; is there anything to look at? At every boundary, so: no more."""
        # The lock itself: through the condition it takes four times as long.
        with self._lock:
            self._step = step
            return step >= self._attend

    def expect(self, proposal: Agreed) -> tuple[bool, int]:
        """Keep the training thread from passing `proposal.step` unheard. Whether it had not yet, and where
        it is."""
        with self._changed:
            in_time = self._step < proposal.step
            if in_time:
                self._expected.append(proposal)
                self._look_again()
            return in_time, self._step

    def settle(self, number: int, go: bool) -> None:
        """The verdict. Of something unknown (it came late, or nobody waited any more) it says nothing."""
        with self._changed:
            if go:
                self._agreed.update(e.number for e in self._expected if e.number == number)
            else:
                self._drop(lambda expected: expected.number == number)
            self._changed.notify_all()

    def give_up(self) -> None:
        """No verdict will come any more. What was agreed stays agreed."""
        with self._changed:
            self._drop(lambda expected: expected.number not in self._agreed)
            self._changed.notify_all()

    def meet(self, step: int, limit: float) -> Agreed | None:
        """At the expected step: wait for the verdict. None if it was called off, or is not here."""
        with self._changed:
            if not self._expected or step < self._expected[0].step:
                return None
            mine = self._expected[0]
            self._changed.wait_for(lambda: mine.number in self._agreed or mine not in self._expected, limit)
            agreed = mine.number in self._agreed
            self._drop(lambda expected: expected is mine)
            return mine if agreed else None

    @property
    def is_expecting(self) -> bool:
        return bool(self._expected)

    def has_agreed(self, kind: str) -> bool:
        """Is a boundary of this kind agreed on and still ahead?"""
        with self._changed:
            return any(e.kind == kind and e.number in self._agreed for e in self._expected)

    def nudge(self, on: bool) -> None:
        """Let the training thread look closer at every boundary."""
        with self._changed:
            self._nudged = on
            self._look_again()

    def _drop(self, unwanted: Any) -> None:
        for expected in [e for e in self._expected if unwanted(e)]:
            self._expected.remove(expected)
            self._agreed.discard(expected.number)
        self._look_again()

    def _look_again(self) -> None:
        self._attend = self._expected[0].step if self._expected else math.inf
        if self._nudged:
            self._attend = -math.inf
