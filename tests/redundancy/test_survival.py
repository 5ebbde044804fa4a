"""The share of losses that lose nothing: the published table, and the same by trying them all."""

from itertools import combinations
from math import comb
from pathlib import Path

import pytest
from survival import survival_table, surviving_share, surviving_share_of_domains, unrecoverable

from holdfast.redundancy.scheme import PARTNER, parse_scheme
from holdfast.redundancy.sets import group_nodes

NODES = [str(number) for number in range(16)]


@pytest.mark.parametrize(
    ("scheme", "sizes", "shares"),
    [
        ("partner", [2] * 8, [100.0, 93.3, 80.0, 61.5]),
        ("partner", [16], [100.0, 86.7, 62.9, 36.3]),
        ("xor:4", [4] * 4, [100.0, 80.0, 45.7, 14.1]),
        ("xor:8", [8, 8], [100.0, 53.3, 0.0, 0.0]),
        ("rs:6+2", [8, 8], [100.0, 100.0, 80.0, 43.1]),
        ("rs:5+3", [8, 8], [100.0, 100.0, 100.0, 92.3]),
        ("single", [1] * 16, [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_the_table_of_sixteen_nodes(scheme: str, sizes: list[int], shares: list[float]) -> None:
    found = [round(100 * surviving_share(parse_scheme(scheme), sizes, m), 1) for m in (1, 2, 3, 4)]
    assert found == shares


@pytest.mark.parametrize("word", ["single", "partner", "xor:3", "xor:4", "rs:3+2"])
@pytest.mark.parametrize("nodes", [5, 9, 11])
def test_the_formula_agrees_with_trying_every_loss(word: str, nodes: int) -> None:
    grouping = group_nodes(NODES[:nodes], word)
    sizes = [len(members) for members in grouping.sets]
    for losses in range(nodes + 1):
        survived = sum(not unrecoverable(grouping, lost) for lost in combinations(NODES[:nodes], losses))
        assert surviving_share(grouping.scheme, sizes, losses) == survived / comb(nodes, losses)
    assert surviving_share(grouping.scheme, sizes, nodes + 1) == 0


def test_it_is_exact_for_a_job_far_too_large_to_enumerate() -> None:
    # Two losses hit the same of 5,000 pairs with probability 1 / 9,999.
    assert surviving_share(PARTNER, [2] * 5000, 2) == pytest.approx(1 - 1 / 9999, rel=1e-12)


def test_who_cannot_be_rebuilt_is_named() -> None:
    assert unrecoverable(group_nodes(["a", "b", "c"], "partner"), ["a", "b"]) == ("a",)
    assert unrecoverable(group_nodes(NODES, "xor:8"), ["0", "2", "1"]) == ("0", "2")
    assert unrecoverable(group_nodes(NODES, "rs:6+2"), ["0", "2", "1"]) == ()


def test_losing_racks_is_survived_where_sets_go_across_them() -> None:
    racks = {node: f"rack{int(node) // 4}" for node in NODES}
    across = group_nodes(NODES, "xor:4", racks)
    assert surviving_share_of_domains(across, racks, 1) == 1.0
    assert surviving_share_of_domains(across, racks, 2) == 0.0
    # Sets of eight get two nodes of every rack.
    assert surviving_share_of_domains(group_nodes(NODES, "rs:6+2", racks), racks, 1) == 1.0
    assert surviving_share_of_domains(group_nodes(NODES, "xor:8", racks), racks, 1) == 0.0
    assert surviving_share_of_domains(across, racks, 5) == 0.0


def test_a_sample_of_the_cases_comes_close_and_repeats_itself() -> None:
    grouping = group_nodes(NODES, "xor:4")
    exact = surviving_share_of_domains(grouping, {}, 3)
    assert exact == surviving_share(grouping.scheme, [4] * 4, 3)
    sampled = surviving_share_of_domains(grouping, {}, 3, most_cases=500)
    # Four standard errors of 500 draws.
    assert abs(sampled - exact) < 0.09
    assert sampled == surviving_share_of_domains(grouping, {}, 3, most_cases=500)


def test_the_table_of_the_documents_is_the_computed_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "redundancy.md").read_text()
    assert survival_table(["single", "partner", "xor:4", "xor:8", "rs:6+2", "rs:5+3"], nodes=16) in text


def test_the_table_as_people_read_it() -> None:
    lines = survival_table(["partner", "rs:6+2"], 17, 2).splitlines()
    assert lines[0] == "| scheme | sets | extra space | 1 lost | 2 lost |"
    assert lines[2] == "| partner | 1 of 3 + 7 of 2 | 100% | 100.0% | 92.6% |"
    assert lines[3] == "| rs:6+2 | 1 of 9 + 1 of 8 | 33% | 100.0% | 100.0% |"
