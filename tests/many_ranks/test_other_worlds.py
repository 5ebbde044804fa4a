"""What two ranks saved, for one, two, three and four; DDP and FSDP2, and from each to the other."""

from __future__ import annotations

import os
from typing import Any

import pytest
from scenarios import SAMPLES, play

# The numbers of ranks that restore under the other kind of training.
OTHER_WORLDS = "1234" if os.environ.get("HOLDFAST_TORTURE") else "3"


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def worlds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return play("reshard", tmp_path_factory.mktemp(request.param), request.param, OTHER_WORLDS)


def everywhere(worlds: dict[str, Any]) -> list[tuple[str, int, dict[str, Any]]]:
    found = [(where, rank, a) for where, all_ in worlds["found"].items() for rank, a in enumerate(all_)]
    assert len(found) == 10 + sum(map(int, OTHER_WORLDS))
    assert all(answer is not None for _, _, answer in found), worlds["errors"]
    return found


def test_every_world_and_either_sharding_restores_every_bit(worlds: dict[str, Any]) -> None:
    saved = worlds["saved"][0]["whole"]
    assert len(saved) > 20
    assert worlds["saved"][1]["whole"] == saved
    for where, rank, answer in everywhere(worlds):
        assert answer["whole"] == saved, f"rank {rank} of {where}"


def test_every_rank_gets_its_own_random_streams_and_buffers_back(worlds: dict[str, Any]) -> None:
    saved = worlds["saved"]
    assert saved[0]["own"]["rng"] != saved[1]["own"]["rng"]
    for where, rank, answer in everywhere(worlds):
        before = saved[rank]["own"] if rank < 2 else saved[0]["own"]
        assert answer["own"]["buffers"] == before["buffers"], f"rank {rank} of {where}"
        if rank < 2:
            assert answer["own"]["rng"] == before["rng"], f"rank {rank} of {where}"


def test_ranks_that_are_new_draw_from_streams_of_their_own(worlds: dict[str, Any]) -> None:
    for where, answers in worlds["found"].items():
        streams = {answer["own"]["rng"] for answer in answers}
        assert len(streams) == len(answers), where
    # And from the same ones whenever this checkpoint is restored.
    assert worlds["found"]["ddp 3"][2]["own"]["rng"] == worlds["found"]["fsdp 3"][2]["own"]["rng"]


def test_the_rest_of_the_epoch_is_read_once_by_all_ranks_together(worlds: dict[str, Any]) -> None:
    seen = [index for answer in worlds["saved"] for index in answer["seen"]]
    for where, answers in worlds["found"].items():
        rest = [index for answer in answers for index in answer["rest"]]
        assert sorted({*seen, *rest}) == list(range(SAMPLES)), where
        assert len(seen) + len(rest) - SAMPLES < len(answers), f"{where}: only padding may repeat"
