"""What a batch job does after its training: every way it can end, in a chain and with requeueing."""

import pytest

from holdfast.jobs.hand_over import HandOver, decide_hand_over
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
