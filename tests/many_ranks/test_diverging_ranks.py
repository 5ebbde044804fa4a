"""One rank of two diverges: all stop where it asks them to, and all go back to the same finite checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenarios import play

from holdfast.checkpoints.find import committed
from holdfast.format.manifest import Manifest
from holdfast.jobs.exit_codes import DO_NOT_RESTART, PLEASE_RUN_AGAIN
from holdfast.stores.store import CheckpointStore

SCRIPT = Path(__file__).with_name("diverging_ranks.py")


def manifests(folder: Path) -> list[Manifest]:
    return [found.manifest for found in committed(CheckpointStore(folder)) if found.manifest]


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("on_nan", ["stop", "rewind"])
def test_all_ranks_stop_with_the_one_that_diverged_and_go_on_from_before(
    tmp_path: Path, victim: int, on_nan: str
) -> None:
    found = play("diverging", tmp_path, victim, on_nan, script=SCRIPT)
    assert all(found["first"]), found["errors"]
    code = DO_NOT_RESTART if on_nan == "stop" else PLEASE_RUN_AGAIN
    assert [rank["code"] for rank in found["first"]] == [code, code], found["stderr"][-3000:]
    assert all(found["second"]), found["errors"]
    assert [rank["code"] for rank in found["second"]] == [0, 0]
    [resumed] = {rank["resumed"] for rank in found["second"]}
    assert 1 <= resumed <= 4, "from before the first NaN"
    newest = manifests(tmp_path / "run")[0]
    assert newest.step == 12
    assert "not-finite" not in newest.tags
