"""`torchrun --max-restarts` under `holdfast run`: the next generation finds its peers and goes on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.jobs.torchrun import OWN_STORE, why_restarts_may_hang

TRAINING = Path(__file__).with_name("elastic_training.py")
STEPS = 12


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.torture)])
def test_workers_that_torchrun_restarts_go_on_from_the_checkpoint(victim: int, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "holdfast.cli.main", "run", "--restarts", "0", "--run", str(tmp_path / "run"),
        "--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        "--max-restarts=1", str(TRAINING), str(tmp_path), str(STEPS), str(victim), "7",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "torchrun may hang" not in done.stderr
    for rank in (0, 1):
        lines = (tmp_path / f"losses-{rank}").read_text().splitlines()
        losses: dict[int, dict[int, str]] = {0: {}, 1: {}}
        for generation, step, loss in map(json.loads, lines):
            losses[generation][step] = loss
        again = losses[1]
        assert min(again) > 1, "the second generation continues"
        assert max(again) == STEPS
        assert all(again[step] == loss for step, loss in losses[0].items() if step in again)
        assert set(losses[0]) | set(again) == set(range(1, STEPS + 1))


def test_restarts_that_may_hang_are_said_beforehand() -> None:
    promised = {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert OWN_STORE in (why_restarts_may_hang(promised) or "")
    assert why_restarts_may_hang(promised | {"TORCHELASTIC_USE_AGENT_STORE": "False"}) is None
    assert why_restarts_may_hang(promised | {"TORCHELASTIC_MAX_RESTARTS": "0"}) is None
    assert why_restarts_may_hang({}) is None
