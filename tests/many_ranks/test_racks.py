"""Nodes that die together, with their rack or their power supply, do not protect each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scenarios import play

RACKS = Path(__file__).with_name("racks_at_work.py")
PARITY = pytest.param("xor:2", marks=pytest.mark.torture)


def grouping_said(rank: dict[str, Any]) -> list[str]:
    return [line.rpartition(": ")[2] for line in rank["said"] if "protect each other" in line]


@pytest.mark.parametrize("scheme", ["partner", PARITY])
def test_a_whole_rack_is_lost_and_after_a_move_another_one(scheme: str, tmp_path: Path) -> None:
    found = play("racks", tmp_path, scheme, script=RACKS)
    first, second, third = found["first"], found["rack lost"], found["other rack lost"]
    for before, after, step in ((first, second, 1), (second, third, 2)):
        for one, other in zip(before, after, strict=True):
            assert other["resumed"] == step, found["errors"]
            assert other["at start"] == one["at death"]
    # Rank 0 says it once, and nobody else does.
    assert [grouping_said(rank) for rank in first] == [["n0 n1 | n2 n3"], [], [], []]
    assert grouping_said(second[0]) == ["n0 n2 | n1 n3"], "sets follow the machines that nodes are on now"
    assert not any("not survived" in line for rank in first + second + third for line in rank["said"])


@pytest.mark.parametrize("scheme", ["partner", PARITY])
def test_the_same_loss_is_too_much_where_nobody_said_what_nodes_share(scheme: str, tmp_path: Path) -> None:
    found = play("unnamed", tmp_path, scheme, script=RACKS)
    assert grouping_said(found["first"][0]) == ["n0 n2 | n1 n3"]
    assert all("NoValidCheckpoint" in rank["refused"] for rank in found["rack lost"])
