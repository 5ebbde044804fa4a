"""Killed anywhere, a feed gives what the uninterrupted one would have given: same indices, same bits."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from noisy_samples import Noisy, Quiet, indices, same
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from holdfast.data.torch_feed import Feed
from holdfast.data.torch_streams import STREAMS

EPOCHS = 3
SIZE = 23  # leaves an uneven last batch of 3


class Buckets(Sampler[list[int]]):
    """A user's batch sampler: batches of different lengths, shuffled by Python's own generator."""

    def __iter__(self):
        batches = [
            [0, 1],
            [2, 3, 4],
            [5],
            [6, 7, 8, 9],
            [10, 11],
            [12, 13, 14],
            [15, 16, 17, 18],
            [19, 20, 21, 22],
        ]
        random.shuffle(batches)
        yield from batches

    def __len__(self) -> int:
        return 8


Build = Callable[[int], DataLoader[Any]]

PLAIN: dict[str, Build] = {
    f"{'shuffled' if shuffle else 'in order'}{', drop last' if drop else ''}": (
        lambda workers, shuffle=shuffle, drop=drop: DataLoader(
            Noisy(SIZE), batch_size=4, shuffle=shuffle, drop_last=drop, num_workers=workers
        )
    )
    for shuffle in (True, False)
    for drop in (True, False)
}
OWN_ORDER: dict[str, Build] = {
    "torch batch sampler": lambda workers: DataLoader(
        Noisy(SIZE), batch_sampler=BatchSampler(RandomSampler(range(SIZE)), 5, True), num_workers=workers
    ),
    "own batch sampler": lambda workers: DataLoader(
        Noisy(SIZE), batch_sampler=Buckets(), num_workers=workers
    ),
    "weighted": lambda workers: DataLoader(
        Noisy(SIZE), 4, sampler=WeightedRandomSampler([1.0, 2.0] * 11 + [9.0], 30), num_workers=workers
    ),
    "generator": lambda workers: DataLoader(
        Noisy(SIZE), 4, shuffle=True, generator=torch.Generator().manual_seed(9), num_workers=workers
    ),
    "lazy generator": lambda workers: DataLoader(
        Noisy(SIZE),
        4,
        sampler=RandomSampler(range(SIZE), replacement=True, num_samples=70, generator=torch.Generator()),
        num_workers=workers,
    ),
    "subset": lambda workers: DataLoader(
        Noisy(SIZE), 4, sampler=SubsetRandomSampler(range(3, 20)), num_workers=workers
    ),
}


def feed_of(build: Build, workers: int, state: dict[str, Any] | None = None) -> Feed:
    feed = Feed(build(workers), name="train", seed=11)
    if state is not None:
        feed.load_state_dict(state)
    return feed


def run_through(feed: Feed, first_epoch: int = 0) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
    """All batches to the end, and the state after each, as a checkpoint there would hold it."""
    batches, states = [], []
    for epoch in range(first_epoch, EPOCHS):
        for batch in feed.batches(epoch):
            batches.append(batch)
            states.append(feed.state_dict())
    return batches, states


def epoch_of(state: dict[str, Any]) -> int:
    return int(state["position"]["epoch"])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [*PLAIN, *OWN_ORDER])
def test_killed_at_twenty_points_it_continues_bit_for_bit(kind: str, workers: int) -> None:
    build = {**PLAIN, **OWN_ORDER}[kind]
    whole, states = run_through(feed_of(build, 0))
    training = [stream.mark() for stream in STREAMS]
    under_way, states_under_way = run_through(feed_of(build, workers))
    assert same(under_way, whole)
    assert states_under_way == states, "a position must not depend on what workers loaded ahead"
    chance = random.Random(f"{kind}{workers}")
    points = chance.sample(range(len(whole)), min(20, len(whole)))
    for point in points if workers == 0 else points[:8]:
        state = states_under_way[point]
        rest, _ = run_through(feed_of(build, workers, state), epoch_of(state))
        assert same(rest, whole[point + 1 :]), f"killed after batch {point}"
    assert not any(s.moved(mark) for s, mark in zip(STREAMS, training, strict=True))


@pytest.mark.torture
@pytest.mark.parametrize("kind", [*PLAIN, *OWN_ORDER])
def test_killed_at_every_point_with_workers_it_continues_bit_for_bit(kind: str) -> None:
    build = {**PLAIN, **OWN_ORDER}[kind]
    whole, states = run_through(feed_of(build, 2))
    for point, state in enumerate(states):
        rest, _ = run_through(feed_of(build, 2, state), epoch_of(state))
        assert same(rest, whole[point + 1 :]), f"killed after batch {point}"


@pytest.mark.parametrize("kind", [*PLAIN, *OWN_ORDER])
def test_a_chain_of_kills_every_few_batches_changes_nothing(kind: str) -> None:
    build = {**PLAIN, **OWN_ORDER}[kind]
    whole, _ = run_through(feed_of(build, 0))
    chance = random.Random(kind)
    got: list[torch.Tensor] = []
    state: dict[str, Any] | None = None
    epoch = 0
    while epoch < EPOCHS:
        feed = feed_of(build, 0, state)
        lives = chance.randint(1, 4)  # batches until the next kill: often several in one epoch
        while epoch < EPOCHS and lives:
            for batch in feed.batches(epoch):
                got.append(batch)
                lives -= 1
                if not lives:
                    break
            else:
                epoch += 1
        state = feed.state_dict()
    assert same(got, whole)


def test_persistent_workers_prefetching_far_ahead_change_nothing() -> None:
    def build(workers: int) -> DataLoader[Any]:
        return DataLoader(
            Noisy(SIZE), 2, shuffle=True, num_workers=workers, persistent_workers=workers > 0,
            prefetch_factor=8 if workers else None,
        )  # fmt: skip

    whole, states = run_through(feed_of(build, 0))
    for point in (0, 5, 11, 12, 20):
        feed = feed_of(build, 2, states[point])
        assert same(run_through(feed, epoch_of(states[point]))[0], whole[point + 1 :])


def test_a_users_generator_keeps_the_order_it_has_in_a_bare_loader() -> None:
    bare = OWN_ORDER["generator"](0)
    bare_order = [[int(i) for i in batch[:, 0]] for _ in range(EPOCHS) for batch in bare]
    assert indices(run_through(feed_of(OWN_ORDER["generator"], 0))[0]) == bare_order


class Countdown(Sampler[int]):
    """A sampler with a state of its own that every pass changes."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        for i in range(12):
            yield (i * 5 + self.passes) % 12

    def __len__(self) -> int:
        return 12

    def state_dict(self) -> dict[str, int]:
        return {"passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.passes = state["passes"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_with_its_own_state_is_brought_back_by_it(workers: int) -> None:
    def build(n: int) -> DataLoader[Any]:
        return DataLoader(Noisy(12), 5, sampler=Countdown(), num_workers=n)

    whole, states = run_through(feed_of(build, workers))
    assert len({tuple(map(tuple, indices(whole[i : i + 3]))) for i in (0, 3, 6)}) == 3
    for point in range(len(whole)):
        rest, _ = run_through(feed_of(build, workers, states[point]), epoch_of(states[point]))
        assert same(rest, whole[point + 1 :])


def test_the_state_is_small_and_the_rest_of_a_large_epoch_is_not_replayed() -> None:
    size = 5_000_000
    feed = Feed(DataLoader(Quiet(size), 64, shuffle=True), name="train", seed=3)
    state = feed.state_dict()
    batches = feed.batches(4)
    next(batches)
    state = feed.state_dict()
    state["position"]["consumed"] = int(size * 0.9) // 64 * 64
    assert len(json.dumps(state)) < 1000
    dataset = Quiet(size)
    resumed = Feed(DataLoader(dataset, 64, shuffle=True), name="train", seed=3)
    resumed.load_state_dict(state)
    next(resumed.batches(4))
    assert dataset.loads == 64


def test_sequential_sampler_given_by_hand_is_the_plain_order() -> None:
    loader = DataLoader(Quiet(10), 4, sampler=SequentialSampler(range(10)))
    assert [b.tolist() for b in Feed(loader, name="x", seed=0).batches(0)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
