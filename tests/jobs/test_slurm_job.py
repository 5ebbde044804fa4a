"""What a job knows of its Slurm: from its variables, and from a script that answers like `scontrol`."""

import os
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.errors import SetupError
from holdfast.jobs.environment import detect
from holdfast.jobs.slurm import SlurmJob, ask_deadline, read_job, requeue, show_job, slurm_job

ARRAY = {
    "SLURM_JOB_ID": "41", "SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_MAX": "5",
    "SLURM_RESTART_COUNT": "3", "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_END_TIME": "1794780888",
}  # fmt: skip


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Answers with the file `answer`, exits with `code`, and notes what it was asked in `asked`."""
    script = tmp_path / "scontrol"
    script.write_text(
        f'#!/bin/sh\necho "$SLURM_TIME_FORMAT $*" >> {tmp_path}/asked\ncat {tmp_path}/answer\n'
        f"exit $(cat {tmp_path}/code)\n"
    )
    script.chmod(0o755)
    (tmp_path / "code").write_text("0")
    (tmp_path / "answer").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_outside_slurm_there_is_no_job() -> None:
    assert read_job({}) is None
    assert detect({}, SystemClock()).kind == "plain"


def test_every_variable_is_read() -> None:
    job = read_job(ARRAY)
    assert job is not None
    assert (job.job_id, job.label, job.attempt, job.nodes) == ("41", "40_2", 3, 4)
    assert job.deadline is not None
    assert job.deadline.at == 1794780888


def test_detection_finds_slurm_first() -> None:
    job = detect(ARRAY, SystemClock())
    assert isinstance(job, SlurmJob)
    assert job.kind == "slurm"


def test_nonsense_in_variables_is_passed_over() -> None:
    job = read_job({"SLURM_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "x", "SLURM_RESTART_COUNT": "²"})
    assert job == SlurmJob("7")


@pytest.mark.parametrize(("task", "has"), [("1", True), ("4", True), ("5", False)])
def test_only_the_last_task_has_no_successor(task: str, has: bool) -> None:
    job = read_job({**ARRAY, "SLURM_ARRAY_TASK_ID": task})
    assert job is not None
    assert job.has_successor is has


def test_a_job_outside_an_array_requeues_itself_and_one_process_speaks_for_all() -> None:
    alone = {"SLURM_JOB_ID": "7"}
    first, second = read_job({**alone, "SLURM_PROCID": "0"}), read_job({**alone, "SLURM_PROCID": "1"})
    assert first is not None
    assert first.requeue_command == ("scontrol", "requeue", "7")
    assert second is not None
    assert second.requeue_command is None
    array = read_job(ARRAY)
    assert array is not None
    assert array.requeue_command is None


def test_the_end_is_asked_of_scontrol_where_the_environment_does_not_say_it(scontrol: Path) -> None:
    (scontrol / "answer").write_text("JobId=7 JobName=a b TimeLimit=00:01:00 EndTime=1794780888 Power=\n")
    job = slurm_job({"SLURM_JOB_ID": "7"}, SystemClock())
    assert job is not None
    assert job.deadline is not None
    assert job.deadline.at == 1794780888
    assert (scontrol / "asked").read_text() == "%s --oneliner show job 7\n"


def test_the_last_task_of_an_array_is_not_taken_for_another(scontrol: Path) -> None:
    (scontrol / "answer").write_text(
        "JobId=40 ArrayJobId=40 ArrayTaskId=5 TimeLimit=1 EndTime=500\n"
        "JobId=41 ArrayJobId=40 ArrayTaskId=1 TimeLimit=1 EndTime=100\n"
    )
    assert show_job("40")["EndTime"] == "500"
    assert show_job("41")["EndTime"] == "100"
    with pytest.raises(SetupError, match="knows no job 42"):
        show_job("42")


@pytest.mark.parametrize(
    "said", ["TimeLimit=UNLIMITED EndTime=1794780888", "TimeLimit=1 EndTime=Unknown", ""]
)
def test_no_limit_is_no_deadline(said: str, scontrol: Path) -> None:
    (scontrol / "answer").write_text(f"JobId=7 {said}\n")
    assert ask_deadline("7") is None


def test_a_controller_that_fails_is_no_deadline_and_no_error(scontrol: Path) -> None:
    (scontrol / "code").write_text("1")
    assert ask_deadline("7") is None


def test_requeueing_names_the_task_and_not_the_array(scontrol: Path) -> None:
    job = read_job({**ARRAY, "SLURM_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "5"})
    assert job is not None
    requeue(job)
    assert (scontrol / "asked").read_text() == "%s requeue 40_5\n"


def test_a_refused_requeue_says_why(scontrol: Path) -> None:
    (scontrol / "code").write_text("1")
    (scontrol / "answer").write_text("Requeue of batch job disabled")
    with pytest.raises(SetupError, match="disabled"):
        requeue(SlurmJob("7"))


def test_a_missing_scontrol_is_an_error_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"not on PATH.*container"):
        requeue(SlurmJob("7"))
