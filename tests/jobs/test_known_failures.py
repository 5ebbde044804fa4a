"""What the surroundings say about failures is used, and nothing else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from holdfast.engine.earlier_runs import MOST_RUNS, hint_from_earlier_runs, remember
from holdfast.jobs.known_failures import is_spot, what_is_known
from holdfast.policy.failures import FailureHistory, Spell

HOUR = 3600.0


def words(
    *, nodes: int = 1, spot: str | None = "off", seen: int = 0, labels: Path = Path("/none"), **environ: str
) -> list[str]:
    return [hint.why for hint in what_is_known(nodes, spot, environ, failures_seen=seen, labels=labels)]


def test_nothing_is_known_of_a_plain_machine() -> None:
    assert words() == []


def test_a_machine_that_is_said_to_be_spot_is_lost_once_in_four_hours_and_more_often_if_there_are_many() -> (
    None
):
    (one,) = what_is_known(1, "aws", {})
    (many,) = what_is_known(8, "aws", {})
    assert one.mtbf == 4 * HOUR
    assert many.mtbf == HOUR / 2


@pytest.mark.parametrize(
    ("label", "expected"),
    [('karpenter.sh/capacity-type="spot"', ["the pod is on spot machines"]), ('app="training"', [])],
)
def test_the_labels_of_a_pod_tell_spot_machines(tmp_path: Path, label: str, expected: list[str]) -> None:
    (tmp_path / "labels").write_text(f'{label}\nx="y"\n')
    assert words(labels=tmp_path / "labels", KUBERNETES_SERVICE_HOST="10.0.0.1") == expected
    assert words(labels=tmp_path / "labels") == []


def test_slurms_names_and_requeues_tell_what_may_be_preempted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # no scontrol
    assert words(SLURM_JOB_ID="1", SLURM_JOB_PARTITION="gpu", SLURM_JOB_QOS="normal") == []
    assert words(SLURM_JOB_ID="1", SLURM_JOB_QOS="Scavenger") == ["QOS Scavenger can be preempted"]
    assert words(SLURM_JOB_ID="1", SLURM_JOB_PARTITION="preempt") == ["partition preempt can be preempted"]
    assert words(SLURM_JOB_ID="1", SLURM_RESTART_COUNT="2") == ["Slurm has requeued this job 2 times"]


@pytest.mark.parametrize(("mode", "expected"), [("REQUEUE", 1), ("GANG,SUSPEND", 1), ("OFF", 0)])
def test_scontrol_is_asked_whether_a_partition_is_preempted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, expected: int
) -> None:
    script = tmp_path / "scontrol"
    script.write_text(f"#!/bin/sh\necho PartitionName=gpu MaxNodes=4 PreemptMode={mode} State=UP\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert len(words(SLURM_JOB_ID="1", SLURM_JOB_PARTITION="gpu")) == expected


def test_restarts_that_the_journal_does_not_know_of_count() -> None:
    assert words(TORCHELASTIC_RESTART_COUNT="3") == ["torchrun has restarted this 3 times"]
    assert words(TORCHELASTIC_RESTART_COUNT="3", seen=3) == []
    assert words(HOLDFAST_ATTEMPT="2") == ["the supervisor has restarted this 2 times"]
    assert words(HOLDFAST_ATTEMPT="0") == words(HOLDFAST_ATTEMPT="many") == []


@contextmanager
def cloud(answers: dict[str, str]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path.partition("?")[0])
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write((body or "").encode())

        do_PUT = do_GET

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("name", "path", "answer", "expected"),
    [
        ("aws", "/latest/meta-data/instance-life-cycle", "spot", True),
        ("aws", "/latest/meta-data/instance-life-cycle", "on-demand", False),
        ("gcp", "/computeMetadata/v1/instance/scheduling/preemptible", "TRUE", True),
        ("gcp", "/computeMetadata/v1/instance/scheduling/preemptible", "FALSE", False),
        ("azure", "/metadata/instance/compute/priority", "Spot", True),
        ("azure", "/metadata/instance/compute/priority", "", False),
    ],
)
def test_the_cloud_says_whether_a_machine_is_spot(name: str, path: str, answer: str, expected: bool) -> None:
    with cloud({path: answer, "/latest/api/token": "t"}) as address:
        assert is_spot(name, address) is expected
    assert is_spot(name, address) is False  # nobody answers any more


def history(seconds: float, failures: int) -> FailureHistory:
    spells = [Spell(i * 1e6, i * 1e6 + seconds, "failure") for i in range(failures)]
    return FailureHistory((*spells, Spell(9e9, 9e9 + seconds, "planned")))


def test_a_new_run_knows_what_earlier_runs_here_learned(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    assert hint_from_earlier_runs(environ, "new", 1) is None
    remember(environ, "old", 2, history(2 * HOUR, 3), wall=1.0)
    hint = hint_from_earlier_runs(environ, "new", 4)
    assert hint is not None
    assert hint.mtbf == pytest.approx(2 * 8 * HOUR / 3.5 / 4)
    assert hint.why == "earlier runs here had 3 failures in 16 h"
    assert hint_from_earlier_runs(environ, "old", 4) is None  # its own journal says it better
    elsewhere = {**environ, "SLURM_CLUSTER_NAME": "other"}
    assert hint_from_earlier_runs(elsewhere, "new", 4) is None


def test_it_can_be_switched_off_and_is_never_needed(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    off = {**environ, "HOLDFAST_LEARN": "off"}
    remember(off, "old", 1, history(2 * HOUR, 3), wall=1.0)
    assert list(tmp_path.iterdir()) == []
    remember({}, "old", 1, history(2 * HOUR, 3), wall=1.0)
    remember(environ, "old", 1, history(2 * HOUR, 3), wall=1.0)
    assert hint_from_earlier_runs(off, "new", 1) is None
    file = next(tmp_path.rglob("*.json"))
    for nonsense in ("", "[]", '{"version": 1, "runs": {"a": {"place": 1}}}', '{"version": 2, "runs": {}}'):
        file.write_text(nonsense)
        assert hint_from_earlier_runs(environ, "new", 1) is None


def test_the_file_stays_small(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    for i in range(MOST_RUNS + 20):
        remember(environ, f"run-{i}", 1, history(HOUR, 1), wall=float(i))
    kept = json.loads(next(tmp_path.rglob("*.json")).read_text())["runs"]
    assert len(kept) == MOST_RUNS
    assert f"run-{MOST_RUNS + 19}" in kept
