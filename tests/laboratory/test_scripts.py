"""Training scripts in the shapes that people write: the same losses without holdfast, with it, and killed."""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_scripts import all_scripts

PROGRAM = Path(__file__).parent / "forked_scripts.py"
SEED = int(os.environ.get("HOLDFAST_SEED", random.SystemRandom().randrange(1 << 30)))
# One each of: epochs and a scheduler, several optimizers, state of its own, a batch that is fetched ahead.
SLICE = ["classifier", "cyclegan", "dqn", "get_batch", "iter_next"]
# Their data does not come out of a loader: what they compute is the same today.
OF_OWN_DATA = {"actor_critic", "dqn", "get_batch", "lbfgs", "ppo", "recurrent"}


@pytest.fixture
def work() -> Iterator[Path]:
    """In memory: what counts here are numbers, and a disk that is waited for would take most of the time."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as place:
        yield Path(place)


def examined(work: Path, kills: int, names: list[str]) -> list[dict[str, Any]]:
    command = [sys.executable, str(PROGRAM), str(work), str(kills), str(SEED), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def judge(results: list[dict[str, Any]], names: list[str], kills: int) -> None:
    assert [result["script"] for result in results] == names
    for result in results:
        assert result["problems"] == [], f"{result['script']}: repeat with HOLDFAST_SEED={SEED}"
        assert result["kills"] >= kills, result
    changed = {r["script"]: r["with_holdfast"] for r in results if r["with_holdfast"] is not None}
    assert set(changed) & OF_OWN_DATA == set(), changed


def test_there_are_at_least_25_scripts() -> None:
    assert len(all_scripts()) >= 25


def test_some_scripts_compute_the_same_without_with_and_killed(work: Path) -> None:
    judge(examined(work, 2, SLICE), SLICE, 2)


@pytest.mark.torture
def test_every_script_computes_the_same_without_with_and_killed_twenty_times(work: Path) -> None:
    judge(examined(work, 20, all_scripts()), all_scripts(), 20)
