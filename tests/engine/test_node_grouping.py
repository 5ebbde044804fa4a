"""What rank 0 says about who protects whom: once, and a warning only where something is not survived."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.engine.node_grouping import say_grouping
from holdfast.engine.node_meeting import Nodes
from holdfast.redundancy.scheme import parse_scheme
from holdfast.stores.locations import node_store


def said(
    caplog: pytest.LogCaptureFixture, folder: Path, scheme: str, racks: str, outer: tuple[str, ...] = ("run",)
) -> tuple[list[str], list[str]]:
    """`racks` has a letter for each node, or a dash. Whatever was said by the way, and the warnings."""
    names = tuple(f"n{number}" for number in range(len(racks)))
    domains: Mapping[str, str] = {n: f"rack-{r}" for n, r in zip(names, racks, strict=True) if r != "-"}
    mine = node_store(str(folder), uuid="00000000-0000-4000-8000-000000000001")
    nodes = Nodes("n0", names, names, True, mine, {"n0": mine}, [], None, domains)
    caplog.clear()
    with caplog.at_level(logging.INFO, "holdfast"):
        say_grouping(nodes, parse_scheme(scheme), outer)
    told = [(record.levelno, record.getMessage()) for record in caplog.records]
    return [m for level, m in told if level < logging.WARNING], [
        m for level, m in told if level >= logging.WARNING
    ]


def test_a_rack_whose_loss_is_not_survived_is_named(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    _, [warning] = said(caplog, tmp_path, "partner", "aaab")
    assert "the loss of all of rack-a is not survived" in warning
    assert "a restart then goes on from run" in warning
    _, [warning] = said(caplog, tmp_path, "xor:4", "aabb", ())
    assert "rack-a or of rack-b" in warning
    assert "no other tier would have it" in warning


@pytest.mark.parametrize(
    ("scheme", "racks"),
    [("partner", "abab"), ("partner", "----"), ("rs:2+2", "aabb"), ("partner", "aaaa"), ("partner", "ab--")],
)
def test_nothing_is_warned_of_where_all_is_kept_apart_or_nothing_can_be(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, scheme: str, racks: str
) -> None:
    by_the_way, warnings = said(caplog, tmp_path, scheme, racks)
    assert warnings == []
    assert by_the_way[0].startswith(f"holdfast: nodes protect each other by {scheme}: ")
    assert ("all nodes are in one failure domain, rack-a" in by_the_way[-1]) == (racks == "aaaa")


def test_where_nothing_is_protected_nothing_is_said(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    assert said(caplog, tmp_path, "single", "aabb") == ([], [])


def test_a_thousand_nodes_fit_into_one_line(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    [line], [warning] = said(caplog, tmp_path, "partner", "a" * 900 + "b" * 100)
    assert line.endswith("| n3 n503 and 496 more")
    assert len(warning) < 300
