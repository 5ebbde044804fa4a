"""After the training: should a batch job end, leave it to the next array task, or requeue? Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.events import AttemptEnded, Event, HandedOver, SaveCommitted
from holdfast.jobs.exit_codes import (
    CANNOT_EXECUTE,
    DO_NOT_RESTART,
    FINISHED,
    NO_PROGRESS,
    NOT_FOUND,
    PLEASE_RUN_AGAIN,
)
from holdfast.jobs.slurm import SlurmJob

# Slurm warns up to a minute before the moment asked for. Stopped earlier than that means preempted.
EARLY_SECONDS = 60.0
JOBS_WITHOUT_PROGRESS = 3
_PERMANENT = (DO_NOT_RESTART, CANNOT_EXECUTE, NOT_FOUND)


@dataclass(frozen=True)
class HandOver:
    """`code` is what the batch script ends with, `why` is for its log. `cancel_rest`: the tasks of the array
    that still wait would come to the same end."""

    code: int
    requeue: bool
    why: str
    cancel_rest: bool = False


@dataclass(frozen=True)
class Gain:
    """What a job brought. `barren` counts the jobs in a row, this one included, without a new checkpoint."""

    newest: str | None = None
    barren: int = 0
    limit: int = JOBS_WITHOUT_PROGRESS
    # How the last attempt of this job ended, if somebody wrote it down.
    cause: str = ""

    @property
    def is_hopeless(self) -> bool:
        return bool(self.limit) and self.barren >= self.limit

    def __str__(self) -> str:
        if not self.barren:
            return "with a checkpoint"
        newest = f"the newest is still {self.newest}" if self.newest else "there is none at all"
        of = f" of {self.limit}" if self.limit else ""
        return f"without a new checkpoint (job {self.barren}{of} in a row; {newest})"


def gain_of(events: Sequence[Event], newest: str | None, job: SlurmJob | None, limit: int) -> Gain:
    """From the run's journal. `newest` is the name of its newest checkpoint now."""
    handed = [index for index, event in enumerate(events) if isinstance(event, HandedOver)]
    since = events[handed[-1] + 1 :] if handed else events
    last = events[handed[-1]] if handed else None
    before = last.checkpoint if isinstance(last, HandedOver) else None
    ends = [event for event in since if isinstance(event, AttemptEnded)]
    cause = f"{ends[-1].cause}, {ends[-1].detail}" if ends else ""
    # A save that only nodes hold is one as well.
    if newest != before or any(isinstance(event, SaveCommitted) for event in since):
        return Gain(newest, 0, limit, cause)
    barren = 1
    for event in (events[index] for index in reversed(handed)):
        # A script that was submitted again was changed, one hopes.
        if not isinstance(event, HandedOver) or event.job != job_name(job) or not event.barren:
            break
        barren += 1
    return Gain(newest, barren, limit, cause)


def job_name(job: SlurmJob | None) -> str:
    """One name for everything that was submitted together."""
    return "" if job is None else job.array_job_id or job.job_id


def decide_hand_over(
    code: int,
    *,
    complete: bool,
    stopped: bool,
    mode: Literal["chain", "requeue"],
    job: SlurmJob | None,
    seconds_left: float | None,
    warning_seconds: float,
    halted: str | None = None,
    gain: Gain | None = None,
) -> HandOver:
    """`stopped` says that the journal ends with a planned stop: torchrun turns every exit code into 1.

    `halted` is the note that halts the run: queued again, it would only end at once, over and over.
    """
    gain = gain or Gain()
    if complete:
        return HandOver(FINISHED, False, "the work is complete")
    if halted is not None:
        return HandOver(
            DO_NOT_RESTART, False, f"{halted}; clear it (holdfast halt --clear), then submit the script again"
        )
    if code == FINISHED and not stopped:
        return HandOver(FINISHED, False, "the training ended without saying that it is complete")
    planned = code == PLEASE_RUN_AGAIN or stopped
    if not planned and code in _PERMANENT:
        why = f"the training failed with exit code {code}, and would again; {gain.cause}".rstrip("; ")
        return HandOver(code, False, why, cancel_rest=True)
    if job is not None and gain.is_hopeless:
        cause = gain.cause or (f"exit code {code}" if not planned else "stopped before anything was saved")
        return HandOver(
            NO_PROGRESS if planned else code,
            False,
            f"gave up: {gain.barren} jobs in a row made no new checkpoint; the last ended by {cause}; give "
            "them more time, or save more often, then submit the script again",
            cancel_rest=True,
        )
    if not planned:
        return HandOver(code, False, f"the training failed with exit code {code}, {gain}")
    if job is None:
        return HandOver(PLEASE_RUN_AGAIN, False, f"stopped {gain}; run the same command again")
    if mode == "requeue":
        return HandOver(FINISHED, True, f"stopped {gain}; job {job.label} goes back into the queue")
    if job.has_successor:
        return HandOver(FINISHED, False, f"stopped {gain}; the next task of the array continues")
    if seconds_left is not None and seconds_left > warning_seconds + EARLY_SECONDS:
        return HandOver(FINISHED, True, f"stopped early {gain}; task {job.label} is queued again")
    return HandOver(
        PLEASE_RUN_AGAIN,
        False,
        "the last task of the array is over and the work is not complete; submit the script again",
    )
