"""Slurm as a job inside it sees it: which job, which attempt, until when; and the way back into the queue.

Reads the environment and asks `scontrol`; never submits anything. Outside Slurm it finds nothing and says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from holdfast.clock import Clock
from holdfast.errors import SetupError
from holdfast.jobs.environment import WallDeadline

# The controller may be busy for a while; a job that waits for ever for an answer loses its grace time.
SCONTROL_SECONDS = 20.0


@dataclass(frozen=True)
class SlurmJob:
    """One attempt of one job; satisfies JobEnvironment. `job_id` is what scontrol takes, also in an array."""

    job_id: str
    array_job_id: str | None = None
    array_task: int | None = None
    last_array_task: int | None = None
    attempt: int = 0
    nodes: int = 1
    deadline: WallDeadline | None = None
    # One process of the job speaks to the scheduler for all of them.
    is_first_process: bool = True

    kind: ClassVar[str] = "slurm"

    @property
    def label(self) -> str:
        """As squeue writes it: "1234" or "1234_5"."""
        return f"{self.array_job_id}_{self.array_task}" if self.array_job_id else self.job_id

    @property
    def has_successor(self) -> bool:
        """Whether a later task of the same array continues without being asked."""
        return (
            self.array_task is not None
            and self.last_array_task is not None
            and self.array_task < self.last_array_task
        )

    @property
    def requeue_command(self) -> tuple[str, ...] | None:
        """None in an array (the next task is the way on) and where another process speaks for the job."""
        if self.array_task is not None or not self.is_first_process:
            return None
        return ("scontrol", "requeue", self.job_id)


def slurm_job(environ: Mapping[str, str], clock: Clock) -> SlurmJob | None:
    """The job this process belongs to, or None outside Slurm. May ask the controller when it will end."""
    job = read_job(environ)
    if job is None or job.deadline is not None:
        return job
    return replace(job, deadline=ask_deadline(job.job_id))


def read_job(environ: Mapping[str, str]) -> SlurmJob | None:
    """What the variables say; asks nobody."""
    job_id = environ.get("SLURM_JOB_ID", "")
    if not job_id:
        return None
    task = _integer(environ.get("SLURM_ARRAY_TASK_ID"))
    end = _integer(environ.get("SLURM_JOB_END_TIME"))
    return SlurmJob(
        job_id=job_id,
        array_job_id=environ.get("SLURM_ARRAY_JOB_ID") if task is not None else None,
        array_task=task,
        last_array_task=_integer(environ.get("SLURM_ARRAY_TASK_MAX")),
        attempt=_integer(environ.get("SLURM_RESTART_COUNT")) or 0,
        nodes=_integer(environ.get("SLURM_JOB_NUM_NODES")) or 1,
        deadline=WallDeadline(float(end), "SLURM_JOB_END_TIME") if end else None,
        is_first_process=environ.get("SLURM_PROCID", "0") == "0",
    )


def ask_deadline(job_id: str) -> WallDeadline | None:
    """When Slurm will end the job; None without a limit or without an answer.

    Newer versions say it in the environment. Slurm counts from the start of the allocation, so asking is
    right where adding the limit to one's own start time would be wrong.
    """
    try:
        said = show_job(job_id)
    except SetupError:
        # A job without a known end is still a job; the warning signal remains.
        return None
    end = _integer(said.get("EndTime"))
    if not end or said.get("TimeLimit") == "UNLIMITED":
        return None
    return WallDeadline(float(end), f"scontrol show job {job_id}")


def show_job(job_id: str) -> dict[str, str]:
    """What `scontrol show job` says of exactly this job, times as seconds since 1970.

    The last task of an array bears the number of the array itself, and asking for that shows every task.
    """
    for line in _scontrol("--oneliner", "show", "job", job_id).splitlines():
        # Values may hold spaces (a command line, a comment); the fields read here never do.
        said = {name: value for name, _, value in (word.partition("=") for word in line.split())}
        if said.get("JobId") == job_id:
            return said
    raise SetupError(f"scontrol knows no job {job_id}", hint="Slurm forgets jobs soon after their end")


def partition_preempts(name: str) -> bool:
    """Whether jobs in this partition may be requeued, cancelled or suspended for others."""
    for line in _scontrol("--oneliner", "show", "partition", name).splitlines():
        said = {key: value for key, _, value in (word.partition("=") for word in line.split())}
        if said.get("PartitionName") == name:
            modes = said.get("PreemptMode", "OFF").split(",")
            return any(mode in ("REQUEUE", "CANCEL", "SUSPEND") for mode in modes)
    return False


def requeue(job: SlurmJob) -> None:
    """Back into the queue, under the same number. Slurm then ends what is left of this attempt."""
    # By its label: the number of an array's last task would requeue every task.
    _scontrol("requeue", job.label)


def cancel_rest(job: SlurmJob) -> None:
    """The tasks of the array behind this one."""
    if job.has_successor and job.array_task is not None:
        _call("scancel", f"{job.array_job_id}_[{job.array_task + 1}-{job.last_array_task}]")


def _scontrol(*arguments: str) -> str:
    return _call("scontrol", *arguments)


def _call(*command: str) -> str:
    if shutil.which(command[0]) is None:
        raise SetupError(
            f"{command[0]} is not on PATH, so Slurm cannot be asked",
            hint="inside a container, bind the host's Slurm commands and /run/munge, or use --array",
        )
    try:
        done = subprocess.run(
            command,
            # Seconds since 1970 instead of the local time of a machine in some time zone.
            env={**os.environ, "SLURM_TIME_FORMAT": "%s"},
            capture_output=True,
            text=True,
            timeout=SCONTROL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SetupError(
            f"{' '.join(command)} gave no answer within {SCONTROL_SECONDS:.0f} s",
            hint="is slurmctld up? `scontrol ping` says so",
        ) from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise SetupError(f"{' '.join(command)} failed: {said[:300]}")
    return done.stdout


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None
