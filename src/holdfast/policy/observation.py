"""What a policy may look at, and what it answers. The engine builds the one and obeys the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Observation:
    """The world at one step boundary. `now` and `deadline` are monotonic seconds."""

    now: float
    step: int
    epoch: int
    epoch_ended: bool = False
    save_in_flight: bool = False
    deadline: float | None = None
    # Called only when a policy wants the number: reading a loss from an accelerator synchronises it.
    loss: Callable[[], float] | None = None
    # Why this process is about to be taken away (spot notice, SIGTERM): forces a save, with this reason.
    notice: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """`final` means that no later save would be durable before the deadline: training on would be lost."""

    save: bool
    reason: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class SaveCost:
    """What one committed save cost, as measured. Seconds and bytes."""

    step: int
    stall_seconds: float
    persist_seconds: float
    bytes: int
