"""What a save cost the training thread in all, slower steps included: feeds the choice of how to copy."""

from __future__ import annotations

import statistics
from collections import deque

from holdfast.staging.copy_choice import CopyChoice, Mode

_REMEMBERED_STEPS = 32
_ENOUGH = 5


class CopyMeter:
    """Told of every step boundary. Steps beside a copy are compared with the usual step."""

    def __init__(self, choice: CopyChoice) -> None:
        self._choice = choice
        self._usual: deque[float] = deque(maxlen=_REMEMBERED_STEPS)
        self._last: float | None = None
        self._mode: Mode | None = None
        self._started = 0.0

    def boundary(self, now: float) -> None:
        """Called when a step ends, before a save may start."""
        last, self._last = self._last, now
        if last is None:
            return
        if self._mode is None:
            self._usual.append(now - last)
        else:
            if len(self._usual) >= _ENOUGH:
                usual = statistics.median(self._usual)
                scatter = statistics.median(abs(step - usual) for step in self._usual)
                self._choice.learn(self._mode, max(now - self._started - usual, 0.0), scatter)
            self._mode = None

    def save_started(self, boundary: float, mode: Mode) -> None:
        """A save began at this boundary: the step that follows pays for it."""
        self._mode, self._started = mode, boundary

    def pause(self) -> None:
        """Something else than a step follows (validation, the end of an epoch): do not count it as one."""
        self._last, self._mode = None, None
