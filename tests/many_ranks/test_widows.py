"""A rank that is killed is not waited for: the others learn it from the kernel, long before their limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenarios import play

from holdfast.checkpoints.find import committed
from holdfast.stores.store import CheckpointStore

SCRIPT = Path(__file__).with_name("widows_at_work.py")


# The harness ends a rank after 90 s; the run's own limit is ten minutes.
@pytest.mark.parametrize(("victim", "ending"), [(2, "wait"), (0, "wait"), (1, "SIGTERM")])
def test_nobody_waits_ten_minutes_for_the_dead(victim: int, ending: str, tmp_path: Path) -> None:
    found = play("widows", tmp_path, victim, ending, script=SCRIPT)
    for rank, answer in enumerate(found["answers"]):
        if rank == victim:
            assert answer is None
            continue
        assert answer is not None, found["errors"]
        if ending == "wait":
            assert "has died" in answer["told"][0] or "saw rank 0 die" in answer["told"][0]
    assert [f.step for f in committed(CheckpointStore(tmp_path / "run"))] == [1]
