"""Another number of ranks, workers or samples per batch in the middle of an epoch: proven by the audit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from noisy_samples import Noisy, Quiet
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler, WeightedRandomSampler

from holdfast.data.audit import audit_run
from holdfast.data.audit_log import AuditLog
from holdfast.data.torch_feed import Feed

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores


class Ranks:
    """All ranks of one attempt, in lockstep, in one process; they share only what a checkpoint holds."""

    def __init__(
        self,
        run: Path,
        attempt: int,
        world: int,
        *,
        state: dict[str, Any] | None = None,
        step: int = 0,
        build: Any = None,
        size: int = 101,
        batch: int = 4,
        workers: int = 0,
    ) -> None:
        self.step = step
        self.feeds = []
        for rank in range(world):
            log = AuditLog(
                run, attempt=attempt, start_step=step, step=lambda: self.step, rank=rank, world=world
            )
            loader = (
                build(rank, world)
                if build
                else DataLoader(Noisy(size), batch, shuffle=True, num_workers=workers)
            )
            feed = Feed(loader, name="train", seed=7, rank=rank, world=world, audit=log)
            if state is not None:
                feed.load_state_dict(state)
            self.feeds.append(feed)
        self.batches: list[Any] = []

    def train(self, epoch: int, steps: int | None = None) -> bool:
        """`steps` steps, or all that remain; whether the epoch is over."""
        iterators = [feed.batches(epoch) for feed in self.feeds]
        while steps is None or steps > 0:
            pulled = [next(iterator, None) for iterator in iterators]
            if pulled[0] is None:
                assert all(batch is None for batch in pulled), (
                    "one rank would have waited for the others for ever"
                )
                return True
            assert len({len(batch) for batch in pulled}) == 1
            self.batches += pulled
            self.step += 1
            steps = None if steps is None else steps - 1
        return False

    def state(self) -> dict[str, Any]:
        states = [feed.state_dict() for feed in self.feeds]
        assert all(state == states[0] for state in states), "the position is one global count"
        return states[0]


def test_ranks_1_2_3_2_in_the_middle_of_an_epoch_lose_and_repeat_nothing(tmp_path: Path) -> None:
    state, step, rows = None, 0, []
    for attempt, (world, steps) in enumerate([(1, 5), (2, 4), (3, 2), (2, None)]):
        ranks = Ranks(tmp_path, attempt, world, state=state, step=step)
        ranks.train(0, steps)
        state, step = ranks.state(), ranks.step
        rows += [tuple(row.tolist()) for batch in ranks.batches for row in batch]
    report = audit_run(tmp_path)
    assert report.ok, report.violations
    (epoch,) = report.passes
    assert (epoch.samples, epoch.exactly_once, epoch.finished, epoch.padding) == (101, True, True, 1)
    # Whoever loads a sample, its augmentation is the same.
    alone = Feed(DataLoader(Noisy(101), 101), name="train", seed=7)
    assert set(rows) == {tuple(row.tolist()) for row in next(alone.batches(0))}


def test_workers_2_4_0_in_the_middle_of_an_epoch_change_no_bit(tmp_path: Path) -> None:
    reference = list(Feed(DataLoader(Noisy(101), 4, shuffle=True), name="train", seed=7).batches(0))
    state, step, batches = None, 0, []
    for attempt, (workers, steps) in enumerate([(2, 7), (4, 9), (0, None)]):
        ranks = Ranks(tmp_path, attempt, 1, state=state, step=step, workers=workers)
        ranks.train(0, steps)
        state, step = ranks.state(), ranks.step
        batches += ranks.batches
    assert audit_run(tmp_path).ok
    assert len(batches) == len(reference)
    assert all(torch.equal(a, b) for a, b in zip(batches, reference, strict=True))


@pytest.mark.parametrize("seed", range(40))
def test_any_history_of_ranks_batch_sizes_and_crashes_is_exactly_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    size, epochs = chance.randint(1, 150), 2
    state, step, saved_epoch, attempt = None, 0, 0, 0
    while saved_epoch < epochs:
        world, batch = chance.randint(1, 4), chance.randint(1, 9)
        ranks = Ranks(tmp_path, attempt, world, state=state, step=step, size=size, batch=batch)
        attempt += 1
        epoch = saved_epoch
        for _ in range(chance.randint(1, 4)):
            epoch += ranks.train(epoch, chance.choice([1, 2, 5, None]))
            if chance.random() < 0.6 or attempt > 20:  # a checkpoint; what follows it may be lost
                state, step, saved_epoch = ranks.state(), ranks.step, epoch
            if epoch == epochs:
                break
    report = audit_run(tmp_path)
    assert report.ok, report.violations
    assert [p.samples for p in report.passes] == [size] * epochs


def build_distributed(rank: int, world: int, *, drop: bool = False, size: int = 50) -> DataLoader[Any]:
    return DataLoader(
        Quiet(size), 4, sampler=DistributedSampler(Quiet(size), world, rank, seed=3, drop_last=drop)
    )


@pytest.mark.parametrize("drop", [False, True])
def test_a_distributed_sampler_keeps_its_order_and_becomes_elastic(tmp_path: Path, drop: bool) -> None:
    def build(rank: int, world: int) -> DataLoader[Any]:
        return build_distributed(rank, world, drop=drop)

    first = Ranks(tmp_path, 0, 3, build=build)
    for epoch in range(2):
        first.train(epoch)
    bare = [build(rank, 3) for rank in range(3)]
    expected = []
    for epoch in range(2):
        for loader in bare:
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        expected += [b.tolist() for together in zip(*bare, strict=True) for b in together]
    assert [b.tolist() for b in first.batches] == expected
    first.train(2, 2)
    second = Ranks(tmp_path, 1, 2, state=first.state(), step=first.step, build=build)
    second.train(2)
    report = audit_run(tmp_path)
    assert report.ok, report.violations
    assert report.passes[2].samples == 50
    assert [p.left_out for p in report.passes] == ([2, 2, 0] if drop else [0, 0, 0])


def test_a_shuffling_loader_is_split_between_ranks_unless_told_not_to() -> None:
    def seen(**options: Any) -> list[set[int]]:
        feeds = [
            Feed(DataLoader(Quiet(20), 3, shuffle=True), name="x", seed=1, rank=rank, world=2, **options)
            for rank in range(2)
        ]
        return [{int(i) for batch in feed.batches(0) for i in batch} for feed in feeds]

    split, whole = seen(), seen(split=False)
    assert len(split[0] & split[1]) <= 1
    assert split[0] | split[1] == set(range(20))
    assert whole == [set(range(20))] * 2


def test_a_sampler_without_a_notion_of_ranks_is_split_as_one_order() -> None:
    def feed(rank: int, world: int) -> Feed:
        loader = DataLoader(Quiet(40), 3, sampler=WeightedRandomSampler([1.0] * 40, 40, replacement=False))
        return Feed(loader, name="x", seed=1, rank=rank, world=world)

    alone = [int(i) for batch in feed(0, 1).batches(0) for i in batch]
    assert sorted(alone) == list(range(40))
    two = [[b.tolist() for b in feed(rank, 2).batches(0)] for rank in range(2)]
    dealt = [i for pair in zip(*two, strict=True) for items in zip(*pair, strict=True) for i in items]
    assert dealt == alone


def test_a_batch_sampler_deals_whole_batches_to_ranks() -> None:
    def feed(rank: int) -> Feed:
        class Pairs(BatchSampler):
            """A user's own, so that its batches stay together."""

        loader = DataLoader(Quiet(10), batch_sampler=Pairs(range(10), 2, False))
        return Feed(loader, name="x", seed=1, rank=rank, world=2)

    got = [[b.tolist() for b in feed(rank).batches(0)] for rank in range(2)]
    assert got == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]]  # the last one fills up


class OwnShards(Sampler[int]):
    """A user's sampler that splits for itself."""

    def __init__(self, num_replicas: int, rank: int) -> None:
        self.num_replicas, self.rank = num_replicas, rank

    def __iter__(self):
        return iter(range(self.rank, 24, self.num_replicas))

    def __len__(self) -> int:
        return 24 // self.num_replicas


def test_a_sampler_that_splits_for_itself_is_not_split_again() -> None:
    feeds = [
        Feed(DataLoader(Quiet(24), 3, sampler=OwnShards(2, rank)), name="x", seed=1, rank=rank, world=2)
        for rank in range(2)
    ]
    assert sorted(int(i) for feed in feeds for batch in feed.batches(0) for i in batch) == list(range(24))
