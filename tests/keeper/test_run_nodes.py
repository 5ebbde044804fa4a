"""`holdfast run --nodes`, as it is typed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nodes import HERE, Director

from holdfast.cli.main import main
from holdfast.cli.running.run_nodes import count_nodes, own_address
from holdfast.errors import SetupError


def test_the_same_command_on_every_node_meets_trains_and_ends(tmp_path: Path) -> None:
    director = Director(tmp_path)
    keepers = [
        subprocess.Popen(
            [
                sys.executable, "-m", "holdfast.cli.main", "run", "--nodes", "2", "--procs-per-node", "2",
                "--run", str(tmp_path / "run"), "--node-address", f"127.0.0.{10 + index}",
                "--pause", "0", "--json", "--", sys.executable, "-S", "-E", str(HERE / "obedient_worker.py"),
            ],
            env={**os.environ, "DIRECTOR": director.path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for index in range(2)
    ]  # fmt: skip
    director.expect(4)[3].order("exit", 7)
    for worker in director.expect(4):
        worker.order("exit", 0)
    said = [keeper.communicate(timeout=60) for keeper in keepers]
    assert [keeper.returncode for keeper in keepers] == [0, 0], said
    events = [event for out, _ in said for event in json.loads(out)["events"]]
    ended = [event for event in events if event["event"] == "AttemptEnded"]
    assert [event["detail"] for event in ended] == [
        "node001, local rank 1: exit code 7",
        "exit code 0 everywhere",
    ]
    # The leader alone writes the journal.
    assert (tmp_path / "run" / "events.jsonl").read_text().count("SupervisorEnded") == 1
    assert (tmp_path / "run" / "meet" / "token").stat().st_mode & 0o777 == 0o600
    director.close()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--spares", "2"], "say how many: --nodes 8"),
        (["--nodes", "2"], "the nodes need a folder to meet in"),
        (["--nodes", "many", "--meet", "m"], "--nodes many is no number"),
        (["--nodes", "2", "--min-nodes", "3", "--meet", "m"], "does not lie between 1 and the 2"),
        (["--nodes", "auto", "--meet", "m"], "this is no step of a Slurm job"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_STEP_NUM_NODES", raising=False)
    assert main(["run", *words, "--", "true"]) != 0
    assert says in capsys.readouterr().err


def test_slurm_says_how_many_nodes_there_are() -> None:
    step = {"SLURM_STEP_NUM_NODES": "12", "SLURM_STEP_NUM_TASKS": "12"}
    assert count_nodes("auto", 4, step) == 8
    assert count_nodes("3", 4, step) == 3
    with pytest.raises(SetupError, match="no step"):
        # What a batch script sees that calls no srun: it runs on the first of those nodes only.
        count_nodes("auto", 0, {"SLURM_NNODES": "12", "SLURM_NTASKS": "12"})
    with pytest.raises(SetupError, match="96 tasks on 12 nodes"):
        count_nodes("auto", 4, {**step, "SLURM_STEP_NUM_TASKS": "96"})


def test_a_name_that_leads_only_to_itself_is_not_given_to_others() -> None:
    assert own_address({"SLURMD_NODENAME": "192.0.2.7"}) == "192.0.2.7"
    assert own_address({"SLURMD_NODENAME": "localhost"}) != "localhost"
