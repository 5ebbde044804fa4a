"""Whether a signal is only Slurm's warning before the time limit. Pure.

Where the end of the job and the cost of a save are known, that warning says nothing new, and stopping at it
would leave minutes unused. Any other signal is obeyed at once: preemption comes without a date.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping

# Seconds, as in --signal=USR1@600; the batch script that `holdfast slurm` writes sets it.
VARIABLE = "HOLDFAST_WARNING"
# Slurm sends it up to a minute before the moment asked for; clocks and rounding take a little.
EARLY_SECONDS = 65.0
# What schedulers warn with, and what nobody sends for any other reason.
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
LATE_SECONDS = 10.0
# What comes behind a command that stopped in time: the end of its processes, and the hand-over.
HAND_OVER_SECONDS = 6.0


def announces_the_limit(number: int | None, seconds_left: float | None, environ: Mapping[str, str]) -> bool:
    """`seconds_left` until the end of the job, when the signal came."""
    warning = warning_seconds(environ)
    if number not in WARNINGS or seconds_left is None or not warning:
        return False
    return warning - LATE_SECONDS <= seconds_left <= warning + EARLY_SECONDS


def warning_seconds(environ: Mapping[str, str]) -> float:
    """How long before the limit the warning was asked for; 0 where nobody says it."""
    said = environ.get(VARIABLE, "")
    return float(said) if said.isdecimal() else 0.0
