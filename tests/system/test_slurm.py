"""Trainings that outlive their jobs, on a real Slurm. All of them run side by side, one on each node.

Slurm's shortest time limit is a minute, and it looks at the limits every half minute: the warning comes 18
to 48 s after the start. The training is too slow to end in the first two jobs; see paced_training.py.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster, why_not

HERE = Path(__file__).parent
HOLDFAST = Path(sys.executable).parent / "holdfast"
LIMITS = ("--time", "1", "--warning", "12")
TASKS = 6

pytestmark = [pytest.mark.system, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]


@dataclass
class Jobs:
    """Everything the tests look at, submitted at once so that they wait together."""

    cluster: SlurmCluster
    folder: Path
    reference: str
    ids: dict[str, str]

    def run_folder(self, name: str) -> Path:
        return self.folder / name / "run"

    def result(self, name: str) -> str:
        return (self.folder / name / "result").read_text()

    def logs(self, name: str) -> str:
        files = sorted((self.run_folder(name) / "slurm").glob("*.log"))
        return "\n".join(f"--- {file.name}\n{file.read_text()}" for file in files)

    def attempts(self, name: str) -> list[dict[str, object]]:
        said = self.call("slurm", "status", str(self.run_folder(name)), "--json")
        return list(json.loads(said)["attempts"])

    def call(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(HOLDFAST), *arguments], env=self.cluster.environment, cwd=self.folder,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, name: str, node: str, *options: str) -> None:
        (self.folder / name).mkdir()
        said = self.call(
            "slurm", str(HERE / "paced_training.py"), "--run", str(self.run_folder(name)),
            "--name", name, "--output", str(self.folder / name / "job.sbatch"), "--submit", "--json",
            f"--sbatch=--nodelist={node}", *options,
            "--", str(self.run_folder(name)), str(self.folder / name / "result"),
        )  # fmt: skip
        self.ids[name] = json.loads(said)["job"]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    folder = tmp_path_factory.mktemp("slurm")
    cluster = SlurmCluster(folder / "cluster")
    # Every job runs torch on a machine that may have two cores.
    cluster.environment["OMP_NUM_THREADS"] = "1"
    try:
        cluster.start()
        reference = folder / "reference"
        subprocess.run(
            [sys.executable, str(HERE / "paced_training.py"), str(folder / "uninterrupted"), str(reference)],
            check=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        jobs = Jobs(cluster, folder, reference.read_text(), {})
        jobs.submit("chain", "n1", *LIMITS, "--array", str(TASKS))
        jobs.submit("requeue", "n2", *LIMITS)
        jobs.submit(
            "preempted", "n3", "--time", "20", "--partition", "low", "--sbatch=--exclusive",
            "--setup", "export SLOW_JOBS=1",
        )  # fmt: skip
        yield jobs
    finally:
        cluster.stop()


def _has_started(jobs: Jobs, name: str) -> bool:
    events = jobs.run_folder(name) / "events.jsonl"
    return events.exists() and "SaveCommitted" in events.read_text()


def test_a_preempted_training_continues_bit_for_bit(jobs: Jobs) -> None:
    cluster, job = jobs.cluster, jobs.ids["preempted"]
    cluster.wait_until(lambda: _has_started(jobs, "preempted"), 120, "the first checkpoint")
    urgent = cluster.submit(
        "--partition=normal", "--nodelist=n3", "--exclusive", "--time=1", "--output=/dev/null",
        "--wrap", "true",
    )  # fmt: skip
    cluster.wait_until(lambda: cluster.states(urgent).get(urgent) == "COMPLETED", 60, "the urgent job")
    states = cluster.wait_for_end(job, 420)
    assert set(states.values()) == {"COMPLETED"}, jobs.logs("preempted")
    assert jobs.result("preempted") == jobs.reference
    first = jobs.attempts("preempted")[0]
    assert first["ended"] == "stopped", "preemption was not answered with a checkpoint"


def test_a_training_of_three_time_limits_finishes_through_an_array(jobs: Jobs) -> None:
    states = jobs.cluster.wait_for_end(jobs.ids["chain"], 420)
    assert jobs.result("chain") == jobs.reference, jobs.logs("chain")
    attempts = jobs.attempts("chain")
    assert len(attempts) >= 3, "the work fitted into fewer than three limits"
    assert [one["ended"] for one in attempts] == ["stopped"] * (len(attempts) - 1) + ["finished"]
    assert set(states.values()) == {"COMPLETED"}, states
    # Each attempt belongs to a task of its own.
    assert len({one["job"] for one in attempts}) == len(attempts)


def test_leftover_array_tasks_end_within_seconds_and_successfully(jobs: Jobs) -> None:
    states = jobs.cluster.wait_for_end(jobs.ids["chain"], 420)
    used = len(jobs.attempts("chain"))
    assert len(states) == TASKS > used
    for task in range(used + 1, TASKS + 1):
        said = jobs.cluster.run("scontrol", "--oneliner", "show", "job", f"{jobs.ids['chain']}_{task}")
        minutes, seconds = said.partition("RunTime=")[2].split()[0].split(":")[1:]
        assert int(minutes) * 60 + int(seconds) < 15
        assert "JobState=COMPLETED" in said
        log = jobs.run_folder("chain") / "slurm" / f"chain-{jobs.ids['chain']}_{task}.log"
        assert "complete; nothing to do" in log.read_text()


def test_a_training_of_three_time_limits_finishes_by_requeueing_itself(jobs: Jobs) -> None:
    states = jobs.cluster.wait_for_end(jobs.ids["requeue"], 420)
    assert set(states.values()) == {"COMPLETED"}, jobs.logs("requeue")
    assert jobs.result("requeue") == jobs.reference
    attempts = jobs.attempts("requeue")
    assert len(attempts) >= 3
    assert {one["job"] for one in attempts} == {jobs.ids["requeue"]}
    said = jobs.cluster.run("scontrol", "show", "job", jobs.ids["requeue"])
    # More than the attempts if a warning came before the training had opened its run.
    assert int(said.partition("Restarts=")[2].split()[0]) >= len(attempts) - 1


def test_torchrun_starts_on_two_nodes(jobs: Jobs) -> None:
    for name in ("chain", "requeue", "preempted"):
        jobs.cluster.wait_for_end(jobs.ids[name], 420)
    run = jobs.folder / "two"
    said = jobs.call(
        "slurm", str(HERE / "gloo_sum.py"), "--run", str(run), "--time", "2", "--nodes", "2",
        # The three nodes are one machine whose node names nobody can look up.
        "--setup", "scontrol() { echo 127.0.0.1; }", "--setup", "export GLOO_SOCKET_IFNAME=lo",
        "--output", str(jobs.folder / "two.sbatch"), "--submit", "--json",
    )  # fmt: skip
    job = json.loads(said)["job"]
    jobs.cluster.wait_for_end(job, 90)
    log = next((run / "slurm").glob("*.log")).read_text()
    assert "the sum over 2 ranks is 3" in log
