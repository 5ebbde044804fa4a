"""The real thing: training on nodes that are lost, with their disks, and replaced; then too few."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from nodes import HERE, Host, Nodes, wait_until
from provider import Provider

from holdfast.jobs import exit_codes
from holdfast.stores.store import CheckpointStore

BENCHMARKS = HERE.parents[1] / "benchmarks"
TRAINING = BENCHMARKS / "hot_restart_training.py"
LIMIT = 120
EPOCHS = 6


class PlainRanks:
    """Ranks that nobody keeps."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self, base: Path, world: int, **environ: str) -> None:
        base.mkdir(exist_ok=True)
        request: dict[str, Any] = {"base": str(base), "world": world, "epochs": EPOCHS, "environ": environ}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def codes(self) -> list[int]:
        assert self._process.stdout is not None
        found: list[int] = json.loads(self._process.stdout.readline())
        return found


@contextmanager
def plain_ranks() -> Iterator[PlainRanks]:
    with subprocess.Popen(
        [sys.executable, str(BENCHMARKS / "hot_restart_ranks.py")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield PlainRanks(process)
        finally:
            process.kill()


def losses(base: Path) -> dict[int, set[str]]:
    """Every value that was ever written for an epoch: some epochs are trained twice."""
    found: dict[int, set[str]] = {}
    for line in (base / "losses").read_text().splitlines():
        epoch, value, _ = line.split()
        found.setdefault(int(epoch), set()).add(value)
    return found


def resumed(base: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (base / "resumed").read_text().splitlines()]


@pytest.mark.torture
def test_lost_nodes_are_replaced_then_state_is_flushed_and_the_next_job_ends_with_equal_losses(
    host: Host, tmp_path: Path
) -> None:
    words = json.dumps(["$NODE_DIR/cache", "xor:3", "run every 100"])
    # The second takes the leader along, and rank 0 with the store that all ranks met through.
    errors = {"2": "node001", "4": "node000"}
    told = {"TIERS": words, "ERRORS": json.dumps(errors), "KEPT": "1"}
    command = [sys.executable, str(TRAINING), str(tmp_path), str(EPOCHS)]
    with plain_ranks() as plain, Nodes(host, tmp_path, nodes=3, spares=1, silence_seconds=20.0) as nodes:
        plain.begin(tmp_path / "undisturbed", 3)
        assert plain.codes() == [0, 0, 0]
        nodes.start(0, 1, 2, 3, command=command, environ=told)
        assert [nodes.end_of(n, LIMIT) for n in range(4)] == [-9, -9, *[exit_codes.TOO_FEW_NODES] * 2]
        assert "was only on the nodes and is in" in nodes.why(2)
        flushed = max(CheckpointStore(tmp_path / "run").names())
        [hot] = resumed(tmp_path)
        assert hot["run"] == 0  # a hot restart reads nothing from the shared tier

        plain.begin(tmp_path, 3, TIERS=words, NODE_DIR=str(tmp_path / "new-disk"))
        assert plain.codes() == [0, 0, 0]
        cold = resumed(tmp_path)[-1]
        assert cold["run"] > 0
        assert f"-s{cold['step']:012d}-" in flushed
    expected = losses(tmp_path / "undisturbed")
    assert sorted(expected) == list(range(EPOCHS))
    assert all(len(values) == 1 for values in expected.values())
    assert losses(tmp_path) == expected


@pytest.mark.torture
def test_a_preempted_node_saves_and_is_replaced_and_no_step_is_trained_twice(
    host: Host, tmp_path: Path
) -> None:
    told = {"TIERS": json.dumps(["$NODE_DIR/cache", "xor:2", "run every 100"])}
    command = [sys.executable, str(TRAINING), str(tmp_path), str(EPOCHS)]
    nodes = Nodes(host, tmp_path, nodes=2, spares=1, silence_seconds=20.0)
    with plain_ranks() as plain, Provider() as provider, nodes:
        plain.begin(tmp_path / "undisturbed", 2)
        assert plain.codes() == [0, 0]
        nodes.start(0, command=command, environ=told)
        nodes.start(1, command=command, environ={**told, **provider.spot})
        nodes.start(2, command=command, environ=told)
        wait_until(lambda: (tmp_path / "losses").exists(), LIMIT)
        provider.preempted.set()
        codes = [nodes.end_of(n, LIMIT) for n in range(3)]
        assert codes == [0, exit_codes.PLEASE_RUN_AGAIN, 0]
        [ended, last] = nodes.events(0, "AttemptEnded")
        assert (ended["cause"], ended["planned"], last["cause"]) == ("preemption", True, "finished")
    [restart] = resumed(tmp_path)
    assert f"-s{restart['step']:012d}-" in ended["checkpoint"]
    assert losses(tmp_path) == losses(tmp_path / "undisturbed")
    # Each epoch's loss was written once: nothing was lost that had been trained.
    assert len((tmp_path / "losses").read_text().splitlines()) == EPOCHS
