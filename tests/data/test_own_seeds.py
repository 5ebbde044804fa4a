"""Where the seeds are ours: nothing that is to be random is the same twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from noisy_samples import Noisy, Quiet
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

import holdfast
from holdfast.data.torch_feed import Feed


def order(feed: Feed, epoch: int = 0) -> list[int]:
    return [int(i) for batch in feed.batches(epoch) for i in batch]


def test_two_shuffled_loaders_of_equal_length_have_two_orders() -> None:
    orders = [order(Feed(DataLoader(Quiet(50), 5, shuffle=True), name=n, seed=1)) for n in ("a", "b")]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]


class Numbers(IterableDataset[float]):
    def __iter__(self) -> Iterator[float]:
        return (random.random() for _ in range(8))


def test_ranks_draw_different_data_from_an_iterable_and_from_a_generator() -> None:
    def drawn(rank: int, loader: Any) -> list[float]:
        feed = Feed(loader, name="x", seed=1, rank=rank, world=2)
        return [float(i) for batch in feed.batches(0) for i in (batch if torch.is_tensor(batch) else [batch])]

    for loader in (DataLoader(Numbers(), 4), Numbers()):
        assert drawn(0, loader) == drawn(0, loader)
        assert not set(drawn(0, loader)) & set(drawn(1, loader))


def test_a_sample_drawn_twice_in_an_epoch_has_two_augmentations_whoever_loads_it() -> None:
    def rows(workers: int, world: int) -> set[tuple[float, ...]]:
        got = set()
        for rank in range(world):
            sampler = RandomSampler(range(3), replacement=True, num_samples=40)
            loader = DataLoader(Noisy(3), 4, sampler=sampler, num_workers=workers)
            feed = Feed(loader, name="x", seed=1, rank=rank, world=world)
            got |= {tuple(row.tolist()) for batch in feed.batches(0) for row in batch}
        return got

    alone = rows(0, 1)
    assert len(alone) == 40
    assert rows(2, 1) == rows(0, 2) == alone


class Asking(Quiet):
    def __getitem__(self, index: int) -> int:
        return holdfast.data.sample_seed(index) >> 1


def test_a_datasets_own_generators_are_told_the_place_as_well() -> None:
    sampler = RandomSampler(range(3), replacement=True, num_samples=40)
    seeds = order(Feed(DataLoader(Asking(3), 4, sampler=sampler), name="x", seed=1))
    assert len(set(seeds)) == 40


def test_every_pass_of_an_epoch_has_its_own_order_and_augmentations() -> None:
    feed = Feed(DataLoader(Noisy(30), 5, shuffle=True), name="x", seed=1)
    passes = [[tuple(row.tolist()) for batch in feed.batches(0) for row in batch] for _ in range(2)]
    assert [row[0] for row in passes[0]] != [row[0] for row in passes[1]]
    assert not set(passes[0]) & set(passes[1])
