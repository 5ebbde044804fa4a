"""Killed in the middle of an epoch and started again on another number of ranks, with torch's own sampler."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from loader_of_torch import SAMPLES

SCRIPT = Path(__file__).parent / "loader_of_torch.py"
DIES_AT = 2


def torchrun(ranks: int, folder: Path, last: int) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
        str(SCRIPT), str(folder), str(last),
    ]  # fmt: skip
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environ)


def handed_out(folder: Path) -> dict[int, Counter[int]]:
    found: dict[int, Counter[int]] = {0: Counter(), 1: Counter()}
    for path in folder.parent.glob(f"{folder.name}.*.*"):
        for line in path.read_text().splitlines():
            epoch, index = map(int, line.split())
            found[epoch][index] += 1
    return found


@pytest.mark.parametrize(
    "ranks", [3, pytest.param(1, marks=pytest.mark.torture), pytest.param(4, marks=pytest.mark.torture)]
)
def test_every_sample_of_the_epoch_comes_once_and_the_change_is_said(tmp_path: Path, ranks: int) -> None:
    folder = tmp_path / "run"
    killed = torchrun(2, folder, DIES_AT)
    assert sum(handed_out(folder)[0].values()) == 2 * 4 * DIES_AT, killed.stderr[-2000:]
    resumed = torchrun(ranks, folder, 0)
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    assert f"was begun with 1 workers on 2 ranks and goes on with 1 on {ranks}" in resumed.stderr
    first, second = handed_out(folder).values()
    assert set(first) == set(range(SAMPLES))
    assert first.total() - SAMPLES < ranks, "only what fills up the last round may come twice"
    assert set(second) == set(range(SAMPLES))
    assert second.total() - SAMPLES < ranks
