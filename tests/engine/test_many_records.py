"""What a rank reads of a checkpoint of many ranks grows with what it needs, not with how many they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from holdfast.capture.torch_registry import track
from holdfast.checkpoints.read import FILES_AT_ONCE
from holdfast.engine.torch_sharded_load import load_sharded
from holdfast.testing.torch_many_ranks import ManyRanks, live_model, parameter_name, value_of

TENSORS = 6


@pytest.fixture(scope="module")
def saved() -> ManyRanks:
    return ManyRanks(300, TENSORS)


@contextmanager
def one_of(world: int, rank: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def load(saved: ManyRanks, world: int, rank: int) -> dict[str, Any]:
    saved.opened.clear()
    saved.most_open = 0
    with one_of(world, rank):
        model = live_model(world, 300, TENSORS)
        states: dict[str, Any] = load_sharded(saved, saved.found, track({"model": model}), rank, world).states  # type: ignore[arg-type]
        found = {name: tensor.to_local().clone() for name, tensor in states["model"].items()}
    return found


@pytest.mark.parametrize(
    ("world", "rank", "most"), [(300, 170, 1), (150, 70, 3), (225, 112, 3), (600, 220, 2)]
)
def test_a_rank_opens_few_records_and_gets_its_rows(
    saved: ManyRanks, world: int, rank: int, most: int
) -> None:
    found = load(saved, world, rank)
    assert sum(count for name, count in saved.opened.items() if name.startswith("rank-")) <= most
    rows = torch.arange(300).chunk(world)[rank] if rank < 300 else torch.empty(0)
    for index in range(TENSORS):
        mine = found[parameter_name(index)]
        assert mine[:, 0].tolist() == [value_of(index, int(row)) for row in rows]


def test_reading_everything_keeps_few_files_open(saved: ManyRanks) -> None:
    saved.opened.clear()
    saved.most_open = 0
    states = load_sharded(saved, saved.found, (), 0, 300).states  # type: ignore[arg-type]
    for index in range(TENSORS):
        rows = states["model"][parameter_name(index)][:, 0].tolist()
        assert rows == [value_of(index, row) for row in range(300)]
    assert saved.most_open <= FILES_AT_ONCE
    assert len(saved.opened) == 600
    assert max(saved.opened.values()) == 1
