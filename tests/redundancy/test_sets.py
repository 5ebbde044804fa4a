"""Sets keep apart what dies together, and never leave a node out."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from survival import extra_space

from holdfast.errors import SetupError
from holdfast.redundancy.scheme import PARTNER, SINGLE, Scheme, parse_scheme
from holdfast.redundancy.sets import group_nodes

SCHEMES = ["single", "partner", "xor:3", "xor:4", "rs:2+2", "rs:6+2"]


def names(count: int) -> list[str]:
    return [f"n{number:02d}" for number in range(count)]


@pytest.mark.parametrize(
    ("nodes", "sizes"),
    [(8, [8]), (9, [9]), (15, [15]), (16, [8, 8]), (17, [9, 8]), (23, [12, 11]), (24, [8] * 3)],
)
def test_sets_are_cut_as_redset_does(nodes: int, sizes: list[int]) -> None:
    assert [len(members) for members in group_nodes(names(nodes), "rs:6+2").sets] == sizes


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SCHEMES), st.lists(st.integers(0, 5), min_size=8, max_size=40))
def test_everyone_is_in_one_set_and_domains_are_spread_as_far_as_they_can(
    word: str, racks: list[int]
) -> None:
    scheme, nodes = parse_scheme(word), names(len(racks))
    domains = {node: f"rack{rack}" for node, rack in zip(nodes, racks, strict=True) if rack}
    grouping = group_nodes(nodes, scheme, domains)
    assert sorted(node for members in grouping.sets for node in members) == nodes
    sizes = [len(members) for members in grouping.sets]
    assert min(sizes) >= scheme.set_size
    assert max(sizes) - min(sizes) <= 1
    in_rack = Counter(domains.values())
    for members in grouping.sets:
        for rack, count in Counter(domains[node] for node in members if node in domains).items():
            assert count <= -(-in_rack[rack] // len(sizes))
    # The pigeonhole is the only excuse.
    crowds = {crowding.domain for crowding in grouping.crowded}
    assert crowds == ({r for r, c in in_rack.items() if c > len(sizes)} if scheme.kind != "single" else set())


def test_pairs_go_across_racks() -> None:
    nodes = names(8)
    grouping = group_nodes(nodes, "partner", {node: f"rack{i // 4}" for i, node in enumerate(nodes)})
    assert grouping.sets == (("n00", "n04"), ("n01", "n05"), ("n02", "n06"), ("n03", "n07"))
    assert grouping.crowded == ()
    assert grouping.survives_any_domain


def test_what_cannot_be_kept_apart_is_said() -> None:
    grouping = group_nodes(names(4), "xor:4", {"n00": "a", "n01": "a", "n02": "b"})
    assert [(c.domain, c.nodes) for c in grouping.crowded] == [("a", ("n00", "n01"))]
    assert not grouping.survives_any_domain
    # Two lost at once are what rs:2+2 is for.
    assert group_nodes(names(4), "rs:2+2", {"n00": "a", "n01": "a"}).survives_any_domain


def test_a_rack_named_like_a_node_is_not_that_node() -> None:
    assert group_nodes(["a", "b"], "partner", {"b": "a"}).crowded == ()


def test_single_protects_against_no_lost_node() -> None:
    grouping = group_nodes(names(3), "single", dict.fromkeys(names(3), "rack"))
    assert grouping.sets == (("n00",), ("n01",), ("n02",))
    assert not grouping.survives_any_domain
    assert grouping.set_of("n01") == ("n01",)


@pytest.mark.parametrize(
    ("scheme", "nodes", "fits"),
    [
        ("rs:6+2", 5, "what fits 5 nodes: rs:3+2, xor:5, partner, single"),
        ("rs:6+2", 2, "what fits 2 nodes: partner, single"),
        ("xor:4", 3, "what fits 3 nodes: xor:3, partner, single"),
        ("partner", 1, "what fits 1 nodes: single"),
    ],
)
def test_too_few_nodes_is_an_error_that_says_what_fits(scheme: str, nodes: int, fits: str) -> None:
    with pytest.raises(SetupError) as caught:
        group_nodes(names(nodes), scheme)
    assert fits in str(caught.value)


def test_a_node_listed_twice_is_refused() -> None:
    with pytest.raises(SetupError, match="'n00' is listed twice"):
        group_nodes(["n00", "n01", "n00"], "partner")


@pytest.mark.parametrize("word", SCHEMES)
def test_schemes_read_back_as_they_are_written(word: str) -> None:
    assert str(parse_scheme(word)) == word
    assert parse_scheme(parse_scheme(f" {word.upper()} ")) == parse_scheme(word)


def test_what_the_words_mean() -> None:
    assert parse_scheme("single") == SINGLE == Scheme("single", 1, 0)
    assert parse_scheme("partner") == PARTNER
    assert parse_scheme("xor:4") == Scheme("xor", 4, 1)
    assert parse_scheme("rs:6+2") == Scheme("rs", 8, 2)
    assert [extra_space(parse_scheme(w)) for w in ("single", "partner", "xor:5", "rs:6+2")] == [
        0,
        1,
        0.25,
        2 / 6,
    ]
    assert extra_space(parse_scheme("rs:6+2"), 10) == 0.25


@pytest.mark.parametrize(
    "word",
    [
        "",
        "xor",
        "xor:",
        "xor:1",
        "xor:0",
        "xor:-4",
        "rs:6",
        "rs:0+2",
        "rs:6+0",
        "rs:6+2+1",
        "rs:120+9",
        "raid",
    ],
)
def test_words_that_mean_nothing_are_refused_with_a_hint(word: str) -> None:
    with pytest.raises(SetupError) as caught:
        parse_scheme(word)
    assert caught.value.hint
