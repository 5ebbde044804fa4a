"""Jobs that need no commands of a scheduler: a shell, a supervisor, or a batch system known by its variables.

Never asks a scheduler anything; what its variables do not say stays unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.clock import Clock
from holdfast.jobs.environment import WallDeadline

# Set by `holdfast run` for its child: 0, 1, 2, ...
ATTEMPT = "HOLDFAST_ATTEMPT"
# kind, and the variable that holds the job's id. A Slurm job has a module of its own.
_SCHEDULERS = (("slurm", "SLURM_JOB_ID"), ("pbs", "PBS_JOBID"), ("lsf", "LSB_JOBID"), ("sge", "SGE_TASK_ID"))


@dataclass(frozen=True)
class PlainJob:
    """Satisfies JobEnvironment."""

    kind: str = "plain"
    job_id: str | None = None
    attempt: int = 0
    deadline: WallDeadline | None = None
    requeue_command: tuple[str, ...] | None = None


def plain_job(environ: Mapping[str, str]) -> PlainJob:
    return PlainJob(attempt=_number(environ.get(ATTEMPT)))


def batch_job(environ: Mapping[str, str], clock: Clock) -> PlainJob | None:
    """A job of PBS, LSF or SGE, or of Slurm where nothing better was found."""
    for kind, variable in _SCHEDULERS:
        if environ.get(variable):
            return PlainJob(
                kind=kind,
                job_id=environ.get("JOB_ID") if kind == "sge" else environ[variable],
                attempt=_number(environ.get(ATTEMPT)),
                deadline=_slurm_end(environ) if kind == "slurm" else None,
            )
    return None


def _slurm_end(environ: Mapping[str, str]) -> WallDeadline | None:
    """Counted by Slurm from the start of the allocation, whenever this process began."""
    end = _number(environ.get("SLURM_JOB_END_TIME"))
    return WallDeadline(float(end), "SLURM_JOB_END_TIME") if end else None


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
