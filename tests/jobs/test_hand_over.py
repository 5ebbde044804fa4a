"""What a batch job does after its training: every way it can end, in a chain and with requeueing."""

import os
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.events import Event, HandedOver, SaveCommitted
from holdfast.jobs.hand_over import Gain, HandOver, decide_hand_over, gain_of
from holdfast.jobs.slurm import SlurmJob

ALONE = SlurmJob("7")
MIDDLE = SlurmJob("41", "40", 2, 5)
LAST = SlurmJob("40", "40", 5, 5)


def decide(code: int, job: SlurmJob | None = ALONE, **known: object) -> HandOver:
    facts: dict[str, object] = {
        "complete": False, "stopped": False, "mode": "requeue", "seconds_left": 30.0, "warning_seconds": 60.0,
    }  # fmt: skip
    return decide_hand_over(code, job=job, **{**facts, **known})  # type: ignore[arg-type]


def test_complete_work_ends_successfully_whatever_the_exit_code() -> None:
    for code in (0, 1, 75):
        assert decide(code, complete=True).code == 0
        assert not decide(code, complete=True).requeue


def test_a_crash_is_a_failure_in_both_modes() -> None:
    for mode in ("requeue", "chain"):
        decision = decide(3, mode=mode)
        assert (decision.code, decision.requeue) == (3, False)


@pytest.mark.parametrize(("code", "stopped"), [(75, False), (75, True), (1, True)])
def test_a_planned_stop_is_requeued(code: int, stopped: bool) -> None:
    """torchrun ends with 1 whatever its workers say; then the journal knows."""
    decision = decide(code, stopped=stopped)
    assert (decision.code, decision.requeue) == (0, True)


def test_a_planned_stop_in_a_chain_is_left_to_the_next_task() -> None:
    decision = decide(75, MIDDLE, mode="chain")
    assert (decision.code, decision.requeue) == (0, False)


def test_the_end_of_a_chain_with_work_left_is_not_called_success() -> None:
    decision = decide(75, LAST, mode="chain")
    assert (decision.code, decision.requeue) == (75, False)
    assert "submit" in decision.why


def test_a_preempted_last_task_gets_the_rest_of_its_time() -> None:
    decision = decide(75, LAST, mode="chain", seconds_left=3000.0)
    assert (decision.code, decision.requeue) == (0, True)


@pytest.mark.parametrize("job", [ALONE, MIDDLE, LAST, None])
def test_a_halted_run_is_not_queued_again(job: SlurmJob | None) -> None:
    for code, stopped in ((78, True), (78, False), (1, True)):
        for mode in ("requeue", "chain"):
            decision = decide(code, job, stopped=stopped, mode=mode, halted="halted by me: wrong data")
            assert (decision.code, decision.requeue) == (78, False)
            assert "wrong data" in decision.why
    assert decide(0, job, complete=True, halted="halted by me").code == 0


def test_outside_slurm_nothing_is_requeued() -> None:
    decision = decide(75, None)
    assert (decision.code, decision.requeue) == (75, False)


def test_a_training_that_ends_by_itself_is_believed() -> None:
    assert decide(0).code == 0


def story(*jobs: tuple[str, str | None]) -> list[Event]:
    """Jobs that ended: their number, and the newest checkpoint then."""
    before: str | None = None
    events: list[Event] = []
    for number, checkpoint in jobs:
        events.append(
            HandedOver(
                time=0, job=number, checkpoint=checkpoint, barren=checkpoint == before, exit_code=0, why=""
            )
        )
        before = checkpoint
    return events


@pytest.mark.parametrize(
    ("before", "newest", "barren"),
    [
        ([], "a", 0),
        ([], None, 1),
        ([("7", None), ("7", None)], None, 3),
        ([("7", "a"), ("7", "a")], "a", 2),
        ([("7", "a"), ("7", "a")], "b", 0),
        ([("6", None), ("6", None)], None, 1),
    ],
)
def test_jobs_without_a_new_checkpoint_are_counted_per_submission(
    before: list[tuple[str, str | None]], newest: str | None, barren: int
) -> None:
    assert gain_of(story(*before), newest, ALONE, 3).barren == barren


def test_a_checkpoint_that_only_nodes_hold_is_progress() -> None:
    saved = SaveCommitted(time=0, step=1, name="x", persist_seconds=0, bytes=0, reason="")
    assert gain_of([*story(("7", "a")), saved], "a", ALONE, 3).barren == 0


def test_what_was_not_saved_is_not_called_a_checkpoint() -> None:
    decision = decide(75, gain=Gain(None, 1))
    assert decision.requeue
    assert "without a new checkpoint (job 1 of 3 in a row; there is none at all)" in decision.why
    assert "with a checkpoint" in decide(75, gain=Gain("a", 0)).why


@pytest.mark.parametrize(("code", "ends"), [(75, 93), (1, 1)])
@pytest.mark.parametrize("mode", ["requeue", "chain"])
def test_jobs_that_bring_nothing_come_to_an_end_with_the_cause(code: int, ends: int, mode: str) -> None:
    gain = Gain(None, 3, cause="stopped, asked to stop (SIGUSR1): killed by SIGUSR1")
    decision = decide(code, MIDDLE, mode=mode, gain=gain)
    assert (decision.code, decision.requeue, decision.cancel_rest) == (ends, False, True)
    assert "asked to stop (SIGUSR1)" in decision.why
    assert decide(75, MIDDLE, mode="chain", gain=Gain(None, 30, limit=0)).code == 0


def test_an_error_that_would_repeat_does_not_use_up_the_array() -> None:
    for code in (78, 126, 127):
        decision = decide(code, MIDDLE, mode="chain", gain=Gain(None, 1))
        assert (decision.code, decision.cancel_rest) == (code, True)
    assert not decide(1, MIDDLE, mode="chain", gain=Gain(None, 1)).cancel_rest


def test_the_tasks_that_wait_are_cancelled_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the batch script calls it, three times, with commands that write down what they are asked."""
    for command in ("scontrol", "scancel"):
        (tmp_path / command).write_text(f'#!/bin/sh\necho {command} "$@" >> {tmp_path}/asked\n')
        (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name, value in {
        "JOB_ID": "42", "ARRAY_JOB_ID": "40", "ARRAY_TASK_ID": "2", "ARRAY_TASK_MAX": "10",
        "JOB_END_TIME": "99999999999",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"SLURM_{name}", value)
    run = str(tmp_path / "run")
    codes = [main(["slurm", "hand-over", run, "--chain", "--code", "75"]) for _ in range(3)]
    assert codes == [0, 0, 93]
    assert (tmp_path / "asked").read_text() == "scancel 40_[3-10]\n"
