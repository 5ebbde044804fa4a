"""What a supervisor is told, and what it shows."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.jobs.attempts import RestartRules
from holdfast.jobs.environment import WallDeadline
from holdfast.jobs.heartbeat import Beat
from holdfast.jobs.watchdog import HangLimits


@dataclass(frozen=True)
class SupervisorSettings:
    rules: RestartRules = field(default_factory=RestartRules)
    hang: HangLimits = field(default_factory=HangLimits)
    # After a stop was asked for: the command may still have to finish a step and a save.
    grace: float = 600.0
    deadline: WallDeadline | None = None
    # The folder of the run, if the user names it; otherwise the training says it in its heartbeat.
    run: str | None = None


@dataclass(frozen=True)
class Status:
    """What the live view shows."""

    attempt: int
    seconds: float
    restarts: int
    beat: Beat | None
    pausing: float | None = None
