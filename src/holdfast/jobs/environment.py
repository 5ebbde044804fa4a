"""The batch system around this process, if there is one: who we are in it and how long we have got.

Only looks. It never submits, requeues or signals anything; whoever acts uses the command given here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from holdfast.clock import Clock, SystemClock


@dataclass(frozen=True)
class WallDeadline:
    """When this process will be ended, in seconds since 1970, and who says so (for messages)."""

    at: float
    source: str


class JobEnvironment(Protocol):
    @property
    def kind(self) -> str:
        """ "plain", "slurm", "pbs", "lsf" or "sge"."""
        ...

    @property
    def job_id(self) -> str | None:
        """What the scheduler calls this job; None outside of one."""
        ...

    @property
    def attempt(self) -> int:
        """0 the first time this job runs, one more each time it was requeued or restarted."""
        ...

    @property
    def deadline(self) -> WallDeadline | None:
        """When the scheduler ends this job; None if it does not say or never does."""
        ...

    @property
    def requeue_command(self) -> tuple[str, ...] | None:
        """The command that puts this job back into the queue; None where the exit code is the only way."""
        ...


Probe = Callable[[Mapping[str, str], Clock], JobEnvironment | None]


def detect(environ: Mapping[str, str] | None = None, clock: Clock | None = None) -> JobEnvironment:
    """The scheduler this process runs under; a plain job if there is none."""
    # Here and not above: the kinds of job know this module's words.
    from holdfast.jobs.plain import batch_job, plain_job
    from holdfast.jobs.slurm import slurm_job

    environ = os.environ if environ is None else environ
    clock = clock or SystemClock()
    probes: tuple[Probe, ...] = (slurm_job, batch_job)
    for probe in probes:
        job = probe(environ, clock)
        if job is not None:
            return job
    return plain_job(environ)
