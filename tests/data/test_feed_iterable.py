"""Iterable datasets: continued by their own state, or read again and said so; never silently repeated."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
from noisy_samples import same
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from holdfast.data.torch_feed import Feed
from holdfast.data.torch_streams import STREAMS
from holdfast.errors import IncompatibleState

EPOCHS = 2


class Stream(IterableDataset[torch.Tensor]):
    """Samples of 0..size-1 shared out by worker, each with a random number. Counts what it reads."""

    def __init__(self, size: int = 26) -> None:
        self.size = size
        self.reads = 0

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, self.size, step):
            self.reads += 1
            noise = [random.random(), float(torch.rand(()))]
            yield torch.tensor([float(i), *noise], dtype=torch.float64)


class Resumable(Stream):
    """The same with a state, as Hugging Face's iterable datasets have it."""

    def __init__(self, size: int = 26) -> None:
        super().__init__(size)
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        self.at = self.at or first
        while self.at < self.size:
            self.reads += 1
            here, self.at = self.at, self.at + step
            noise = [random.random(), float(torch.rand(()))]
            yield torch.tensor([float(here), *noise], dtype=torch.float64)
        self.at = 0


class Counted(Stream):
    """Mosaic-style: told how many samples were consumed, in the main process."""

    def __init__(self, size: int = 26) -> None:
        super().__init__(size)
        self.skip = 0

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, int]:
        assert from_beginning
        return {"sample_in_epoch": num_samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.skip = state["sample_in_epoch"]

    def __iter__(self):
        skip, self.skip = self.skip, 0
        for i in range(skip, self.size):
            self.reads += 1
            yield torch.tensor([float(i)])


def feed_of(dataset: Any, workers: int, state: dict[str, Any] | None = None, **options: Any) -> Feed:
    loader = DataLoader(dataset, num_workers=workers, **{"batch_size": 4, **options})
    feed = Feed(loader, name="train", seed=2)
    if state is not None:
        feed.load_state_dict(state)
    return feed


def run_through(feed: Feed, first: int = 0) -> tuple[list[Any], list[dict[str, Any]]]:
    batches, states = [], []
    for epoch in range(first, EPOCHS):
        for batch in feed.batches(epoch):
            batches.append(batch)
            states.append(feed.state_dict())
    return batches, states


def samples(batches: list[torch.Tensor]) -> list[int]:
    return [int(row[0]) for batch in batches for row in batch]


@pytest.mark.parametrize("dataset", [Stream, Resumable, Counted])
@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_the_order_is_that_of_a_bare_loader(dataset: type[Stream], workers: int) -> None:
    if dataset is Counted and workers:
        pytest.skip("this double does not share its samples out between workers")
    for options in ({}, {"drop_last": True}, {"batch_size": None}):
        bare = list(DataLoader(dataset(), num_workers=workers, **{"batch_size": 4, **options}))
        ours, _ = run_through(feed_of(dataset(), workers, **options))
        if options.get("batch_size", 4) is None:
            bare, ours = [b[None] for b in bare], [b[None] for b in ours]
        assert samples(ours) == samples(bare) * EPOCHS


@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_dataset_with_state_continues_exactly(workers: int) -> None:
    whole, states = run_through(feed_of(Resumable(), workers))
    assert sorted(samples(whole)) == sorted([*range(26)] * EPOCHS)
    for point in range(len(whole)):
        state = states[point]
        rest, _ = run_through(feed_of(Resumable(), workers, state), state["position"]["epoch"])
        assert same(rest, whole[point + 1 :]), f"after batch {point}"


def test_a_dataset_with_state_is_not_read_again() -> None:
    feed = feed_of(Resumable(1000), 0)
    batches = feed.batches(0)
    for _ in range(200):
        next(batches)
    dataset = Resumable(1000)
    resumed = feed_of(dataset, 0, feed.state_dict())
    next(resumed.batches(0))
    assert dataset.reads <= 5


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_without_state_is_read_again_with_a_warning(workers: int) -> None:
    whole, states = run_through(feed_of(Stream(), workers))
    for point in (0, 3, 6, 8, len(whole) - 1):
        state = states[point]
        resumed = feed_of(Stream(), workers, state)
        with pytest.warns(UserWarning, match=r"Stream keeps no state.*state_dict"):
            rest = list(resumed.batches(state["position"]["epoch"]))
        rest += run_through(resumed, state["position"]["epoch"] + 1)[0]
        assert same(rest, whole[point + 1 :]), f"after batch {point}"


def test_a_counted_dataset_is_told_the_samples_of_all_ranks() -> None:
    loader = DataLoader(Counted(), batch_size=4)
    feed = Feed(loader, name="train", seed=0, rank=1, world=3)
    batches = feed.batches(0)
    next(batches), next(batches)
    state = feed.state_dict()
    assert state["source"] == {"dataset": {"sample_in_epoch": 24}}
    dataset = Counted()
    resumed = Feed(DataLoader(dataset, batch_size=4), name="train", seed=0, rank=1, world=3)
    resumed.load_state_dict(state)
    assert samples(list(resumed.batches(0))) == [24, 25]


@pytest.mark.parametrize("dataset", [Stream, Resumable])
def test_training_does_not_notice_what_an_iterable_draws(dataset: type[Stream]) -> None:
    marks = [stream.mark() for stream in STREAMS]
    _, states = run_through(feed_of(dataset(), 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_through(feed_of(dataset(), 0, states[3]))
    assert not any(s.moved(mark) for s, mark in zip(STREAMS, marks, strict=True))


def test_another_number_of_workers_inside_an_epoch_is_refused_with_the_way_out() -> None:
    feed = feed_of(Resumable(), 2)
    batches = feed.batches(0)
    next(batches)
    state = feed.state_dict()
    with pytest.raises(IncompatibleState, match=r"2 reading.*changed_data"):
        feed_of(Resumable(), 1, state)
    list(batches)
    feed_of(Resumable(), 1, feed.state_dict())  # between epochs it is nobody's business


def test_an_endless_dataset_is_continued() -> None:
    class Endless(Resumable):
        def __init__(self) -> None:
            super().__init__(10**9)

    feed = feed_of(Endless(), 0)
    batches = feed.batches(0)
    for _ in range(7):
        next(batches)
    resumed = feed_of(Endless(), 0, feed.state_dict())
    assert torch.equal(next(resumed.batches(0)), next(batches))


def numbers_of(shards: list[int]):
    for shard in shards:
        for i in range(15):
            yield {"x": shard * 15 + i}


def test_hugging_face_iterable_datasets_continue_exactly() -> None:
    datasets = pytest.importorskip("datasets")

    def build(workers: int, state: dict[str, Any] | None = None) -> Feed:
        table = datasets.IterableDataset.from_generator(numbers_of, gen_kwargs={"shards": [0, 1, 2, 3]})
        loader = DataLoader(table.with_format("torch"), batch_size=4, num_workers=workers)
        feed = Feed(loader, name="train", seed=0)
        if state is not None:
            feed.load_state_dict(state)
        return feed

    for workers in (0, 2):
        whole, states = run_through(build(workers))
        assert sorted(int(i) for b in whole for i in b["x"]) == sorted([*range(60)] * EPOCHS)
        for point in (0, 1, 6, 14, 17, 29):
            state = states[point]
            rest, _ = run_through(build(workers, state), state["position"]["epoch"])
            assert same([b["x"] for b in rest], [b["x"] for b in whole[point + 1 :]])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_torchdatas_stateful_loader_continues_exactly(workers: int) -> None:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")

    def build(state: dict[str, Any] | None = None) -> Feed:
        loader = loaders.StatefulDataLoader(
            list(range(26)), 4, shuffle=True, num_workers=workers, generator=torch.Generator().manual_seed(3)
        )
        feed = Feed(loader, name="train", seed=0)
        if state is not None:
            feed.load_state_dict(state)
        return feed

    marks = [stream.mark() for stream in STREAMS]
    whole, states = run_through(build())
    assert len(whole) == 14
    for point in range(len(whole)):
        state = states[point]
        epoch = state["position"]["epoch"]
        resumed = build(state)
        assert same(list(resumed.batches(epoch)), whole[point + 1 : 7 * (epoch + 1)]), f"after batch {point}"
        for later in range(epoch + 1, EPOCHS):
            rest = list(resumed.batches(later))
            assert sorted(int(i) for b in rest for i in b) == list(range(26))
            if workers:  # without workers torchdata itself forgets the generator's place for later epochs
                assert same(rest, whole[7 * later : 7 * (later + 1)])
    assert not any(s.moved(mark) for s, mark in zip(STREAMS, marks, strict=True))
