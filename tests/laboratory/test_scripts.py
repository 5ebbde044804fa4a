"""Training scripts in the shapes that people write: the same losses without holdfast, with it, and killed."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked_scripts import all_scripts

PROGRAM = Path(__file__).parent / "forked_scripts.py"
# One each of: epochs and a scheduler, several optimizers, state of its own, a batch that is fetched ahead.
SLICE = ["classifier", "cyclegan", "dqn", "get_batch", "iter_next"]


def examined(work: Path, seed: int, kills: int, names: list[str]) -> list[dict[str, Any]]:
    command = [sys.executable, str(PROGRAM), str(work), str(kills), str(seed), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10_000, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def judge(results: list[dict[str, Any]], names: list[str], kills: int, seed: int) -> None:
    assert [result["script"] for result in results] == names
    for result in results:
        assert result["problems"] == [], f"{result['script']}: repeat with HOLDFAST_SEED={seed}"
        assert result["kills"] >= kills, result
        assert result["with_holdfast"] is None, f"{result['script']}, undisturbed: {result['with_holdfast']}"


def test_there_are_at_least_25_scripts() -> None:
    assert len(all_scripts()) >= 25


def test_some_scripts_compute_the_same_without_with_and_killed(work: Path, seed: int) -> None:
    judge(examined(work, seed, 2, SLICE), SLICE, 2, seed)


@pytest.mark.torture
def test_every_script_computes_the_same_without_with_and_killed_twenty_times(
    work: Path, seed: int, counted: Callable[[str, int, str, int], None]
) -> None:
    results = examined(work, seed, 20, all_scripts())
    different = sum(result["with_holdfast"] is not None for result in results)
    looked_for = "losses that are not to the bit those without holdfast"
    counted("training scripts with holdfast", len(results), looked_for, different)
    kills = sum(result["kills"] for result in results)
    looked_for = "resumed runs that differ from the undisturbed one"
    counted("kills of training scripts", kills, looked_for, sum(bool(r["problems"]) for r in results))
    judge(results, all_scripts(), 20, seed)
