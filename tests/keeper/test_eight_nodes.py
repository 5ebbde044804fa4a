"""The SC21 experiment in full: 8 nodes, 4 spares, five nodes lost with their disks, one every 10 epochs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from nodes import HERE

from holdfast.jobs import exit_codes


@pytest.mark.torture
def test_four_losses_are_survived_with_equal_losses_and_the_fifth_is_flushed(tmp_path: Path) -> None:
    benchmark = HERE.parents[1] / "benchmarks" / "hot_restart.py"
    subprocess.run(
        [sys.executable, "-W", "ignore", str(benchmark), "--dir", str(tmp_path), "--out", str(tmp_path)],
        check=True, timeout=1500,
    )  # fmt: skip
    found = json.loads((tmp_path / "hot_restart_raw.json").read_text())
    assert found["undisturbed_codes"] == [0] * 8
    assert sorted(found["kept_codes"]) == [-9] * 5 + [exit_codes.TOO_FEW_NODES] * 7
    assert found["again_codes"] == [0] * 8
    assert found["different_losses"] == 0
    assert found["epochs_in_the_end"] == found["epochs"] == 60
    assert len(found["hot_restarts"]) == 4
    assert all(restart["run"] == 0 for restart in found["hot_restarts"])
    assert any(code != 0 for code in found["root_codes"])
    assert found["root_epochs"] <= 11
