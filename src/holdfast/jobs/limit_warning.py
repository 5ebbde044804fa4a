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
LATE_SECONDS = 10.0


def announces_the_limit(number: int | None, seconds_left: float | None, environ: Mapping[str, str]) -> bool:
    """`seconds_left` until the end of the job, when the signal came."""
    warning = environ.get(VARIABLE, "")
    if number not in (signal.SIGUSR1, signal.SIGUSR2) or seconds_left is None or not warning.isdecimal():
        return False
    return int(warning) - LATE_SECONDS <= seconds_left <= int(warning) + EARLY_SECONDS
