"""Jobs without a module of their own: a shell, a supervisor, or PBS, LSF and SGE, known by a variable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.clock import Clock
from holdfast.jobs.deadline_queries import lsf_deadline, pbs_deadline, sge_deadline
from holdfast.jobs.environment import WallDeadline

# Set by `holdfast run` for its child: 0, 1, 2, ...
ATTEMPT = "HOLDFAST_ATTEMPT"
# kind, and the variable that tells it.
_SCHEDULERS = (("pbs", "PBS_JOBID"), ("lsf", "LSB_JOBID"), ("sge", "SGE_TASK_ID"))


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
    """A job of PBS, LSF or SGE."""
    for kind, variable in _SCHEDULERS:
        if environ.get(variable):
            return PlainJob(
                kind=kind,
                job_id=environ.get("JOB_ID") if kind == "sge" else environ[variable],
                attempt=_number(environ.get(ATTEMPT)),
                deadline=_DEADLINE_OF[kind](environ, clock),
            )
    return None


_DEADLINE_OF = {"pbs": pbs_deadline, "lsf": lsf_deadline, "sge": sge_deadline}


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
