"""Nodes that keep their own checkpoints: what a restart finds after processes, folders and nodes are gone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from scenarios import play as play_in

NODES = Path(__file__).with_name("nodes_at_work.py")
TORTURE = pytest.mark.torture
KILLS = 15 if os.environ.get("HOLDFAST_TORTURE") else 2


def play(scenario: str, folder: Path, *words: object) -> dict[str, Any]:
    return play_in(scenario, folder, *words, script=NODES)


def resumed(found: dict[str, Any], when: str) -> dict[str, Any]:
    """What every rank says it was restored from; all say the same."""
    said = [rank["resumed"] for rank in found[when]]
    assert all(one == said[0] for one in said), found["errors"]
    return dict(said[0])


@pytest.mark.parametrize(
    ("kind", "nodes", "per_node", "scheme", "near"),
    [
        pytest.param("ddp", 2, 1, "xor:2", "disk", marks=TORTURE),
        ("fsdp", 2, 2, "partner", "memory"),
        pytest.param("fsdp", 2, 2, "xor:2", "disk", marks=TORTURE),
    ],
)
def test_a_restart_reads_the_nodes_and_survives_the_loss_of_one(
    kind: str, nodes: int, per_node: int, scheme: str, near: str, tmp_path: Path
) -> None:
    found = play("life", tmp_path, kind, nodes, per_node, scheme, near, "short")
    for when, step in (("cached", 4), ("one lost", 6)):
        nothing_shared(resumed(found, when), step)
    as_if_nothing_had_happened(found, "first", "cached", "one lost")
    if near == "memory":
        assert not any(found["caches at the end"]), "a run that is done gives its memory back"


@pytest.mark.parametrize(
    ("kind", "nodes", "scheme"),
    [
        ("fsdp", 3, "xor:3"),
        pytest.param("ddp", 2, "partner", marks=TORTURE),
        pytest.param("fsdp", 4, "rs:2+2", marks=TORTURE),
    ],
)
def test_what_is_lost_is_rebuilt_and_protected_again_until_too_much_is_gone(
    kind: str, nodes: int, scheme: str, tmp_path: Path
) -> None:
    found = play("life", tmp_path, kind, nodes, 1, scheme, "disk", "long")
    for when, step in (("cached", 4), ("one lost", 6), ("another lost", 8)):
        nothing_shared(resumed(found, when), step)
    # Each restart brings outward what was only on the nodes, so there is one to fall back to.
    assert found["shared then"] == [4, 6, 8]
    last = resumed(found, "two lost")
    survives_two = scheme == "rs:2+2"
    assert last["step"] == (10 if survives_two else 8)
    if nodes > 2 and not survives_two:
        [why] = last["rejected"]
        assert "cannot be rebuilt" in why, "one node is left, which knows what is missing"
    as_if_nothing_had_happened(found, "first", "cached", "one lost", "another lost", "two lost")


def nothing_shared(said: dict[str, Any], step: int) -> None:
    assert said["step"] == step
    assert said["read"]["run"] == 0, "nothing may come from the shared tier"
    assert sum(said["read"].values()) > 0


def as_if_nothing_had_happened(found: dict[str, Any], *lives: str) -> None:
    for rank, calm in enumerate(found["calm"]):
        end = found[lives[-1]][rank]
        assert end["whole"] == calm["whole"]
        assert end["own"] == calm["own"]
        losses = dict(calm["losses"])
        for life in lives:
            assert all(losses[step] == loss for step, loss in found[life][rank]["losses"])
    assert found["unprotected"] == []
    assert len(found["protected"]) >= len(lives), "the journal says what is protected"
    assert [sum(read.values()) > 0 for read in found["read"]] == [True] * (len(lives) - 1)
    assert found["shared at the end"][-1] == found[lives[-1]][0]["step"], "the last one goes outward"


def test_the_shared_tier_gets_every_third_the_kept_one_and_the_last(tmp_path: Path) -> None:
    found = play("rhythm", tmp_path)
    assert found["plain home"] == list(range(1, 11))
    assert found["plain"] == [3, 5, 6, 9, 10], "rank 0 copies outward what all ranks saved, the kept one too"
    assert found["home"] == [4, 5, 8, 10]
    assert found["outer"] == [3, 5, 6, 9, 10]
    assert all(steps[-2:] == [9, 10] and len(steps) <= 4 for steps in found["caches"])


def test_fewer_or_more_nodes_go_on_from_the_caches(tmp_path: Path) -> None:
    found = play("elastic", tmp_path)
    for when in ("one", "three"):
        said = resumed(found, when)
        assert said["step"] == 4
        assert said["read"]["run"] == 0
        for rank in found[when]:
            assert rank["at start"] == found["two"][0]["at death"]


def test_where_nothing_is_left_the_error_says_what_is_gone(tmp_path: Path) -> None:
    found = play("nothing left", tmp_path)
    assert len(found["why"]) == 2
    for why in found["why"]:
        assert "NoValidCheckpoint" in why
        assert "state-r00001.safetensors" in why


@pytest.mark.parametrize(
    ("kind", "nodes", "per_node", "scheme"),
    [("ddp", 2, 1, "partner"), pytest.param("fsdp", 2, 2, "xor:2", marks=TORTURE)],
)
def test_killed_at_random_instants_it_ends_as_if_nothing_had_happened(
    kind: str, nodes: int, per_node: int, scheme: str, tmp_path: Path
) -> None:
    found = play("killed", tmp_path, kind, nodes, per_node, scheme, KILLS)
    assert found["killed"] >= KILLS // 2, "most kills must hit a training that still runs"
    for rank, (calm, end) in enumerate(zip(found["calm"], found["done"], strict=True)):
        assert end is not None, found["errors"]
        assert end["whole"] == calm["whole"]
        assert end["own"] == calm["own"]
        expected = {str(step): [loss] for step, loss in calm["losses"]}
        assert found["history"][rank] == expected, "every attempt at a step must compute the same loss"
    assert all(read["run"] == 0 for read in found["restored"])


FIRST = ("write", "first vote", "first count", "show", "publish", "second vote", "second count", "announce")
OTHERS = ("write", "first vote", "publish", "second vote", "outcome")
SLICE = {("publish", 2)}


@pytest.mark.parametrize(
    ("phase", "victim"),
    [
        pytest.param(p, v, marks=() if (p, v) in SLICE else TORTURE)
        for v, phases in ((0, FIRST), (2, OTHERS))
        for p in phases
    ],
)
def test_a_rank_that_dies_in_either_ballot_leaves_nothing_half(
    phase: str, victim: int, tmp_path: Path
) -> None:
    found = play("stumble", tmp_path, phase, victim)
    alive = [told for rank, told in enumerate(found["told"]) if rank != victim]
    assert all(told[0]["committed"] for told in alive), found["errors"]
    steps = {answer["step"] for answer in found["found"]}
    assert len(steps) == 1, "all ranks restore the same checkpoint"
    assert steps <= set(found["may be"])
    if any(told[1]["committed"] for told in alive if len(told) > 1):
        assert steps == {2}, "what was said to be saved is there"
    for rank, answer in enumerate(found["found"]):
        if rank != victim:
            assert answer["state"] == found["told"][rank][answer["step"] - 1]["state"]
