"""A rhythm that the user has fixed: every K steps, T seconds or E epochs, and nothing else decides.

Counts crossings, not slots: after a pause, a skipped boundary or a resume the next save comes at once and the
rhythm goes on; it can neither starve nor catch up in a burst.
"""

from __future__ import annotations

from holdfast.policy.observation import Observation
from holdfast.units import Every, format_seconds


class Rhythm:
    def __init__(self, every: Every) -> None:
        self.every = every
        self._epochs_ended = 0
        self._saved_step: int | None = None
        self._before: dict[int, tuple[int | None, int]] = {}

    def due(self, seen: Observation, age: float) -> bool:
        """Whether a save is due at this boundary. Called once per boundary."""
        if self._saved_step is None:
            self._saved_step = seen.step - 1
        if seen.epoch_ended:
            self._epochs_ended += 1
        amount = self.every.amount
        if self.every.unit == "steps":
            return seen.step // amount > self._saved_step // amount
        if self.every.unit == "seconds":
            return age >= amount
        return self._epochs_ended >= amount

    def save_started(self, step: int) -> None:
        """Start the next beat."""
        self._before[step] = (self._saved_step, self._epochs_ended)
        self._saved_step = step
        self._epochs_ended = 0

    def save_ended(self, step: int, *, failed: bool) -> None:
        """A save that failed does not count: its beat is due again."""
        before = self._before.pop(step, None)
        if failed and before is not None and self._saved_step == step:
            self._saved_step = before[0]
            self._epochs_ended += before[1]

    def seconds(self, step_seconds: float | None) -> float | None:
        """The beat in seconds, as far as that can be said."""
        if self.every.unit == "seconds":
            return self.every.amount
        if self.every.unit == "steps" and step_seconds is not None:
            return self.every.amount * step_seconds
        return None

    def __str__(self) -> str:
        if self.every.unit == "seconds":
            return f"every {format_seconds(self.every.amount)}"
        count = int(self.every.amount)
        return f"every {count} {self.every.unit}" if count != 1 else f"every {self.every.unit[:-1]}"
