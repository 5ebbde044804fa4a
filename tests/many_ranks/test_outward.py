"""Nodes and what lies behind them: an outer tier that cannot be written to, and the end of a run."""

from __future__ import annotations

from pathlib import Path

from scenarios import play

OUTWARD = Path(__file__).with_name("outward_at_work.py")


def test_a_shared_folder_in_trouble_costs_copies_and_no_checkpoint(tmp_path: Path) -> None:
    found = play("trouble", tmp_path, script=OUTWARD)
    first, ended, after = found["trouble"], found["trouble_at_the_end"], found["all_is_well"]
    assert all(first), found["errors"]
    for rank in first:
        # What could not be copied stays on its node, and so do the newest two: saving goes on.
        assert {2, 3} <= set(rank["full, here"])
        assert rank["full, there"] == []
        assert "No space left on device" in rank["full"][0]
        assert {4, 5} <= set(rank["read-only, here"])
        # The fault is gone: so is the backlog, and the last one follows at the end.
        assert rank["there"] == [2, 4, 5]
    # One node cannot write: rank 0, which waits for it, says which one and why, and so does the journal.
    [why] = {line for line in first[0]["read-only"] if "n1: " in line}
    assert "Read-only file system" in why
    assert any("n1: " in line and "Read-only" in line for line in first[0]["journal"])
    for before, rank in zip(first, ended, strict=True):
        assert (rank["step"], rank["start"]) == (5, before["end"])
        assert (rank["here"], rank["there"]) == ([5, 6], [2, 4, 5])
        assert "did not reach run in time; the nodes keep it" in rank["said"][-1]
    for before, rank in zip(ended, after, strict=True):
        assert (rank["step"], rank["start"]) == (6, before["end"])
        assert rank["there"] == [2, 4, 5, 6]


def test_ranks_end_without_a_stack_trace_of_torch(tmp_path: Path) -> None:
    found = play("quiet", tmp_path, script=OUTWARD)
    assert found["ended"] == [True] * 6, found["errors"]
    assert "c10d" not in found["stderr"], found["stderr"][:2000]
    # What the last checkpoint no longer needs is called off, and nobody reads from a node that has left.
    assert "is not protected" not in found["stderr"], found["stderr"][:2000]
