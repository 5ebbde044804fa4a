"""From what a supervisor saw to a cause, and from the cause to the next move."""

import signal

import pytest

from holdfast.jobs import exit_codes
from holdfast.jobs.attempts import (
    AttemptEnd,
    Evidence,
    RestartRules,
    Tally,
    backoff,
    classify,
    got_on,
    next_move,
)
from holdfast.jobs.heartbeat import Beat

RULES = RestartRules(restarts=5, no_progress=3, first_pause=1.0, longest_pause=10.0)
CRASH = AttemptEnd("exit code", "exit code 1", 1)


def said(phase: str, why: str = "") -> Beat:
    return Beat(1, 1, "/run", 7, phase, why)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        (Evidence(0), "finished"),
        (Evidence(0, last_beat=said("finished")), "finished"),
        (Evidence(0, last_beat=said("failed", "the last state is not saved")), "exit code"),
        (Evidence(0, last_beat=said("stopped", "deadline (SLURM_JOB_END_TIME)")), "time limit"),
        (Evidence(1), "exit code"),
        (Evidence(-9), "signal"),
        (Evidence(137), "signal"),
        (Evidence(-11), "signal"),
        (Evidence(78), "do not restart"),
        (Evidence(78, asked_to_stop="SIGTERM"), "do not restart"),
        (Evidence(78, halted="halted by me", run="runs/a"), "halted"),
        (Evidence(1, halted="halted by me", run="runs/a"), "exit code"),
        (Evidence(127), "cannot start"),
        (Evidence(130), "interrupted"),
        (Evidence(-2), "interrupted"),
        (Evidence(75), "stopped"),
        (Evidence(75, last_beat=said("stopped", "deadline (SLURM_JOB_END_TIME)")), "time limit"),
        (Evidence(75, last_beat=said("stopped", "notice: AWS: ...")), "preemption"),
        (Evidence(75, last_beat=said("stopped", "SIGUSR1")), "stopped"),
        (Evidence(75, asked_to_stop="preemption"), "preemption"),
        (Evidence(75, asked_to_stop="SIGTERM"), "stopped"),
        (Evidence(-15, asked_to_stop="SIGTERM"), "stopped"),
        (Evidence(1, asked_to_stop="SIGINT"), "interrupted"),
        (Evidence(-9, asked_to_stop="time limit"), "time limit"),
        (Evidence(-9, hang="silent"), "hang"),
        (Evidence(0, hang="silent"), "hang"),
    ],
)
def test_the_cause_is_what_explains_the_end(evidence: Evidence, cause: str) -> None:
    assert classify(evidence).cause == cause


def test_a_program_that_ends_with_0_when_asked_to_stop_is_not_taken_for_finished() -> None:
    assert classify(Evidence(0, asked_to_stop="SIGTERM")).cause == "stopped"
    assert classify(Evidence(0, asked_to_stop="SIGTERM", last_beat=said("finished"))).cause == "finished"


@pytest.mark.parametrize(
    ("code", "here", "anywhere", "cause"),
    [
        (-9, 1, 1, "out of memory"),
        (1, 1, 1, "out of memory"),  # a launcher that reports a killed worker
        (-9, 0, 1, "out of memory"),
        (137, 0, 1, "out of memory"),
        (-9, 0, 0, "signal"),
        (1, 0, 1, "exit code"),  # somebody else on this machine was killed
        (0, 0, 1, "finished"),
    ],
)
def test_out_of_memory_needs_evidence_of_the_kernel(code: int, here: int, anywhere: int, cause: str) -> None:
    assert classify(Evidence(code, oom_kills_here=here, oom_kills_anywhere=anywhere)).cause == cause


def test_the_detail_names_the_signal() -> None:
    assert classify(Evidence(-signal.SIGSEGV)).detail == "killed by SIGSEGV"
    assert classify(Evidence(128 + signal.SIGSEGV)).detail == "exit code 139 (SIGSEGV)"


def test_only_asked_for_ends_are_planned() -> None:
    planned = {classify(e).cause for e in (Evidence(0), Evidence(75), Evidence(130)) if classify(e).planned}
    assert planned == {"finished", "stopped", "interrupted"}
    assert not classify(Evidence(-9)).planned
    assert not classify(Evidence(78)).planned


def move(end: AttemptEnd, tally: Tally, left: float | None = None, *, stopping: bool = False):  # type: ignore[no-untyped-def]
    return next_move(end, tally, RULES, seconds_left=left, stopping=stopping)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (AttemptEnd("finished", ""), exit_codes.FINISHED),
        (AttemptEnd("do not restart", ""), exit_codes.DO_NOT_RESTART),
        (AttemptEnd("interrupted", ""), exit_codes.INTERRUPTED),
        (AttemptEnd("preemption", ""), exit_codes.PLEASE_RUN_AGAIN),
        (AttemptEnd("time limit", ""), exit_codes.PLEASE_RUN_AGAIN),
        (AttemptEnd("cannot start", "", 126), exit_codes.CANNOT_EXECUTE),
        (AttemptEnd("cannot start", "", 127), exit_codes.NOT_FOUND),
    ],
)
def test_these_ends_are_final(end: AttemptEnd, code: int) -> None:
    assert move(end, Tally(1)).exit_code == code


def test_a_crash_is_started_again() -> None:
    assert move(CRASH, Tally(1, failures=1, without_progress=1)).exit_code is None


def test_attempts_without_a_new_checkpoint_end_it_and_name_the_cause() -> None:
    last = move(CRASH, Tally(3, failures=3, without_progress=3))
    assert last.exit_code == exit_codes.NO_PROGRESS
    assert "3 attempts in a row made no new checkpoint" in last.why
    assert "exit code 1" in last.why


def test_asking_to_be_run_again_without_progress_ends_too() -> None:
    stopped = AttemptEnd("stopped", "", 75)
    assert move(stopped, Tally(2, without_progress=2)).exit_code is None
    assert move(stopped, Tally(3, without_progress=3)).exit_code == exit_codes.NO_PROGRESS


def test_the_budget_counts_failures_only() -> None:
    assert move(CRASH, Tally(50, failures=5)).exit_code is None
    assert move(CRASH, Tally(50, failures=6)).exit_code == exit_codes.OUT_OF_RESTARTS
    tally = Tally().after(AttemptEnd("stopped", ""), progressed=True).after(CRASH, progressed=True)
    assert (tally.attempts, tally.failures) == (2, 1)


def test_a_supervisor_that_was_asked_to_stop_does_not_start_again() -> None:
    assert move(CRASH, Tally(1, 1, 0), stopping=True).exit_code == exit_codes.PLEASE_RUN_AGAIN


def test_no_restart_behind_the_deadline() -> None:
    assert move(CRASH, Tally(1, 1, 0), left=0.5).exit_code == exit_codes.PLEASE_RUN_AGAIN
    assert move(CRASH, Tally(1, 1, 0), left=100).exit_code is None


def test_the_pause_doubles_while_nothing_gets_on_and_is_capped() -> None:
    assert [backoff(n, RULES) for n in (0, 1, 2, 3, 4, 5, 9)] == [1, 1, 2, 4, 8, 10, 10]


def test_progress_is_a_new_checkpoint() -> None:
    assert got_on(None, "a", visible=True, seconds=0)
    assert got_on("a", "b", visible=True, seconds=0)
    assert not got_on("a", "a", visible=True, seconds=1e6)
    assert not got_on(None, None, visible=True, seconds=1e6)


def test_where_checkpoints_cannot_be_seen_a_long_life_counts() -> None:
    assert got_on(None, None, visible=False, seconds=61)
    assert not got_on(None, None, visible=False, seconds=59)
