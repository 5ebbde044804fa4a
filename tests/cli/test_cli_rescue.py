"""What a supervisor does last: what killed ranks left on this machine, and nowhere else, is made to last."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.checkpoints.find import committed
from holdfast.cli.running.rescue import rescue
from holdfast.stores.store import CheckpointStore
from holdfast.testing.store_contract import newest_valid
from holdfast.tiers.memory_folder import default_root


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The run of two nodes n0 and n1 whose ranks died at step 5; step 4 is only in their memory."""
    base = tmp_path_factory.mktemp("nodes")
    script = Path(__file__).with_name("nodes_left_behind.py")
    subprocess.run([sys.executable, str(script), str(base)], check=True, timeout=120)
    yield base / "run"
    rescue(str(base / "run"))


def caches(run: Path) -> Path:
    return Path(default_root(), "node-caches", CheckpointStore(run).uuid)


def writers(run: Path) -> list[str]:
    return sorted(os.listdir(run / "writers"))


def test_what_other_machines_have_a_part_of_is_left_to_them_and_nobody_is_fenced(
    killed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, here = writers(killed), caches(killed)
    away = here / "n1", here.parent / f"{here.name}-elsewhere"
    os.rename(*away)
    try:
        said = rescue(str(killed))
    finally:
        os.rename(*reversed(away))
    assert said is not None
    assert said["saved"] == []
    assert "is on n1 as well; start the run again on the same nodes" in capsys.readouterr().err
    assert writers(killed) == before, "a claim would shut out ranks that live on n1"
    assert (here / "n0").is_dir(), "it may be all that is left of the checkpoint"


def test_what_only_the_nodes_memory_held_is_committed_and_the_memory_given_back(
    killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert committed(CheckpointStore(killed)) == []
    said = rescue(str(killed))
    assert said is not None
    assert said["failed"] == []
    assert "was only on this machine; it is in run now" in capsys.readouterr().err
    loaded = newest_valid(CheckpointStore(killed))
    assert loaded is not None
    assert (loaded.manifest.step, str(loaded.found.name)) == (4, said["saved"][0])  # type: ignore[index]
    assert not caches(killed).exists()
    assert rescue(str(killed)) is None, "nothing is left to do"


def test_of_a_run_that_never_began_nothing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rescue(str(tmp_path / "never")) is None
    assert capsys.readouterr().err == ""
