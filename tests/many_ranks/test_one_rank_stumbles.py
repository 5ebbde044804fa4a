"""One rank of three dies or hangs in each phase of a save: no half commit, no hang, the next save is fine."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenarios import play

FIRST = ("snapshot", "copy", "begin", "write", "vote", "count", "publish", "announce")
OTHERS = ("snapshot", "copy", "write", "vote", "outcome")
EVERY = [(p, v, how) for how in ("kill", "hang") for v, ps in ((0, FIRST), (2, OTHERS)) for p in ps]
SLICE = {("write", 2, "hang"), ("outcome", 2, "kill")}


@pytest.mark.parametrize(
    ("phase", "victim", "how"),
    [pytest.param(*c, marks=() if c in SLICE else pytest.mark.torture) for c in EVERY],
)
def test_a_save_is_everybodys_or_nobodys(phase: str, victim: int, how: str, tmp_path: Path) -> None:
    found = play("stumble", tmp_path, phase, victim, how)
    told, steps = found["told"], found["steps"]
    alive = [saves for rank, saves in enumerate(told) if how == "hang" or rank != victim]
    assert all(saves is not None for saves in alive), found["errors"]
    assert all(saves[0]["committed"] for saves in alive)
    said_committed = any(saves[1]["committed"] for saves in alive)
    # A rank 0 that was told to wait while it published does publish in the end; nobody else may say so.
    if found["should_commit"] or (phase, how) == ("publish", "hang"):
        assert 2 in steps
    else:
        assert 2 not in steps
        assert not said_committed
    if how == "hang":
        assert all(saves[2]["committed"] for saves in alive), "the save after it must be fine"
        assert 3 in steps
    assert [answer["step"] for answer in found["resumed"]] == [max(steps)] * 3
