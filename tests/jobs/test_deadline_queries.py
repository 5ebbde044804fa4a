"""PBS, LSF and SGE, each played by a script that answers as their documentation says."""

import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from holdfast.jobs.environment import detect
from holdfast.jobs.plain import _session_began
from holdfast.testing.fake_clock import FakeClock

PBS = """Job Id: 12.server
    Job_Name = train
    resources_used.walltime = 00:10:00
    job_state = R
    Resource_List.ncpus = 4
    Resource_List.walltime = 01:30:00
    stime = Sun Nov 15 22:00:00 2026
"""
SGE = """==============================================================
job_number:                 5
hard resource_list:         h_rt=7200,mem_free=4G
"""


@pytest.fixture
def commands(tmp_path: Path):  # type: ignore[no-untyped-def]
    def answer(name: str, text: str, code: int = 0) -> dict[str, str]:
        (tmp_path / "answer").write_text(text)
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/asked\ncat {tmp_path}/answer\nexit {code}\n')
        script.chmod(0o755)
        return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    return answer


def test_pbs_counts_from_the_start_of_the_job(commands) -> None:  # type: ignore[no-untyped-def]
    job = detect({**commands("qstat", PBS), "PBS_JOBID": "12.server"})
    assert job.deadline is not None
    assert job.deadline.at == datetime(2026, 11, 15, 23, 30).timestamp()


def test_pbs_without_a_start_counts_from_the_jobs_shell(commands) -> None:  # type: ignore[no-untyped-def]
    text = "\n".join(line for line in PBS.splitlines() if "stime" not in line)
    job = detect({**commands("qstat", text), "PBS_JOBID": "12.server"})
    began = _session_began()
    assert job.deadline is not None
    assert began is not None
    assert job.deadline.at == began + 5400


def test_lsf_says_what_is_left(commands) -> None:  # type: ignore[no-untyped-def]
    clock = FakeClock()
    job = detect({**commands("bjobs", "1:30 L\n"), "LSB_JOBID": "7"}, clock)
    assert job.deadline is not None
    assert job.deadline.at - clock.wall() == 89 * 60
    assert detect({**commands("bjobs", "1:30 E\n"), "LSB_JOBID": "7"}, clock).deadline is None  # an estimate


@pytest.mark.parametrize(("index", "asked"), [("", "7"), ("0", "7"), ("3", "7[3]")])
def test_lsf_is_asked_for_this_element_of_an_array(  # type: ignore[no-untyped-def]
    commands, tmp_path: Path, index: str, asked: str
) -> None:
    variables = {"LSB_JOBID": "7", **({"LSB_JOBINDEX": index} if index else {})}
    detect({**commands("bjobs", "1:30 L\n"), **variables})
    assert (tmp_path / "asked").read_text().split()[-1] == asked


def test_sge_counts_from_the_jobs_shell(commands) -> None:  # type: ignore[no-untyped-def]
    for text in (SGE, SGE.replace("7200", "2:00:00")):
        job = detect({**commands("qstat", text), "SGE_TASK_ID": "undefined", "JOB_ID": "5"})
        assert job.deadline is not None
        assert job.deadline.at == (_session_began() or 0) + 7200


def test_a_session_whose_shell_has_ended_counts_from_its_oldest_process(tmp_path: Path) -> None:
    # As in a container, where the leader is out of sight.
    code = "from holdfast.jobs.plain import _session_began; print(_session_began())"
    answer = tmp_path / "answer"
    before = time.time()
    ends = f"{sys.executable} -c '{code}' > {answer}.part && mv {answer}.part {answer} & exit"
    subprocess.run(["setsid", "--wait", "sh", "-c", ends], check=True)
    while not answer.exists():
        assert time.time() < before + 60
        os.sched_yield()
    assert before - 2 < float(answer.read_text()) < time.time()


@pytest.mark.parametrize(
    ("text", "code"), [("", 0), ("gibberish", 0), (PBS, 1), (PBS.replace("walltime", "x"), 0)]
)
def test_no_answer_is_no_deadline_and_no_error(commands, text: str, code: int) -> None:  # type: ignore[no-untyped-def]
    assert detect({**commands("qstat", text, code), "PBS_JOBID": "12"}).deadline is None


def test_a_missing_command_is_no_deadline_and_no_error(tmp_path: Path) -> None:
    for variable in ("PBS_JOBID", "LSB_JOBID"):
        assert detect({"PATH": str(tmp_path), variable: "1"}).deadline is None
