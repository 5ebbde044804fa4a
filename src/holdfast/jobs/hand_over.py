"""After the training: should a batch job end, leave it to the next array task, or requeue? Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.jobs.exit_codes import DO_NOT_RESTART, FINISHED, PLEASE_RUN_AGAIN
from holdfast.jobs.slurm import SlurmJob

# Slurm warns up to a minute before the moment asked for. Stopped earlier than that means preempted.
EARLY_SECONDS = 60.0


@dataclass(frozen=True)
class HandOver:
    """`code` is what the batch script ends with, `why` is for its log."""

    code: int
    requeue: bool
    why: str


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
) -> HandOver:
    """`stopped` says that the journal ends with a planned stop: torchrun turns every exit code into 1.

    `halted` is the note that halts the run: queued again, it would only end at once, over and over.
    """
    if complete:
        return HandOver(FINISHED, False, "the work is complete")
    if halted is not None:
        return HandOver(
            DO_NOT_RESTART, False, f"{halted}; clear it (holdfast halt --clear), then submit the script again"
        )
    if code == FINISHED and not stopped:
        return HandOver(FINISHED, False, "the training ended without saying that it is complete")
    if code != PLEASE_RUN_AGAIN and not stopped:
        return HandOver(code, False, f"the training failed with exit code {code}")
    if job is None:
        return HandOver(PLEASE_RUN_AGAIN, False, "stopped with a checkpoint; run the same command again")
    if mode == "requeue":
        return HandOver(
            FINISHED, True, f"stopped with a checkpoint; job {job.label} goes back into the queue"
        )
    if job.has_successor:
        return HandOver(FINISHED, False, "stopped with a checkpoint; the next task of the array continues")
    if seconds_left is not None and seconds_left > warning_seconds + EARLY_SECONDS:
        return HandOver(FINISHED, True, f"stopped early with a checkpoint; task {job.label} is queued again")
    return HandOver(
        PLEASE_RUN_AGAIN,
        False,
        "the last task of the array is over and the work is not complete; submit the script again",
    )
