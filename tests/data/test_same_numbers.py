"""With holdfast or without, killed or not: the same samples and the same random numbers, to the bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from noisy_samples import Noisy
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from holdfast.data.torch_feed import Feed
from holdfast.data.torch_watch import marks, put_back
from holdfast.errors import IncompatibleState

pytestmark = pytest.mark.filterwarnings("ignore:.*keeps no state")
EPOCHS = 3
SIZE = 23


class Buckets(Sampler[list[int]]):
    """A batch sampler of the user's: shuffled by Python's generator, batches of different lengths."""

    def __iter__(self) -> Iterator[list[int]]:
        batches = [[0, 1], [2, 3, 4], [5], [6, 7, 8, 9], [10, 11], [12, 13, 14], [15, 16, 17, 18], [19, 20]]
        random.shuffle(batches)
        yield from batches

    def __len__(self) -> int:
        return 8


class Eager(Sampler[int]):
    """Draws when `iter` is called on it, and not with the first index."""

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.permutation(SIZE).tolist())

    def __len__(self) -> int:
        return SIZE


class OwnList(Sampler[int]):
    """Shuffles its own list, so that every epoch goes on from the one before."""

    def __init__(self) -> None:
        self.indices = list(range(SIZE))

    def __iter__(self) -> Iterator[int]:
        random.shuffle(self.indices)
        return iter(self.indices)

    def __len__(self) -> int:
        return SIZE


class Seedable(RandomSampler):
    """As Accelerate's SeedableRandomSampler: makes its generator in its first pass and counts its epochs."""

    def __init__(self) -> None:
        super().__init__(range(SIZE))
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        if self.generator is None:
            self.generator = torch.Generator()
        self.generator.manual_seed(self.epoch + 7)
        yield from super().__iter__()
        self.epoch += 1


class Growing(Sampler[int]):
    """The script says which epoch it is; more samples are let in as epochs go by."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return SIZE - 4 + 2 * min(self.epoch, 1)

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(self.epoch))
        return iter((order % SIZE).tolist())


class OwnGenerator(Dataset[torch.Tensor]):
    """A dataset with a generator of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), self.rng.random()], dtype=torch.float64)


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, SIZE, step):
            yield torch.tensor([float(i), *self.noise()], dtype=torch.float64)

    def noise(self) -> list[float]:
        return [random.random(), float(torch.rand(()))] if get_worker_info() else []


class Buffered(IterableDataset[torch.Tensor]):
    """Shuffles in a buffer as samples come, with the generator of whoever reads."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        waiting: list[int] = []
        for i in range(SIZE):
            waiting.append(i)
            if len(waiting) == 6:
                yield torch.tensor([float(waiting.pop(random.randrange(6)))], dtype=torch.float64)
        random.shuffle(waiting)
        yield from (torch.tensor([float(i)], dtype=torch.float64) for i in waiting)


class Resumable(Stream):
    def __init__(self) -> None:
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        self.at = self.at or first
        while self.at < SIZE:
            here, self.at = self.at, self.at + step
            yield torch.tensor([float(here), random.random(), float(torch.rand(()))], dtype=torch.float64)
        self.at = 0


def reseed(worker: int) -> None:
    np.random.seed((torch.initial_seed() + worker) % 2**32)


def loader(dataset: Any = None, **options: Any) -> Callable[[int], DataLoader[Any]]:
    def build(workers: int) -> DataLoader[Any]:
        given = {k: v() if callable(v) and k != "worker_init_fn" else v for k, v in options.items()}
        persistent = given.pop("persistent_workers", False) and workers > 0
        size = {} if "batch_sampler" in given else {"batch_size": 4}
        return DataLoader(
            Noisy(SIZE) if dataset is None else dataset(), num_workers=workers,
            persistent_workers=persistent, **{**size, **given}
        )  # fmt: skip

    return build


def seeded_generator() -> torch.Generator:
    return torch.Generator().manual_seed(9)


KINDS: dict[str, Callable[[int], DataLoader[Any]]] = {
    "in order": loader(),
    "shuffled": loader(shuffle=True),
    "shuffled, drop last": loader(shuffle=True, drop_last=True),
    "single samples": loader(shuffle=True, batch_size=None),
    "generator": loader(shuffle=True, generator=seeded_generator),
    "generator in order": loader(generator=seeded_generator),
    "persistent": loader(shuffle=True, persistent_workers=True),
    "persistent, generator": loader(shuffle=True, persistent_workers=True, generator=seeded_generator),
    "prefetching": loader(shuffle=True, persistent_workers=True, worker_init_fn=reseed),
    "subset": loader(sampler=lambda: SubsetRandomSampler(range(3, 20))),
    "weighted": loader(sampler=lambda: WeightedRandomSampler([1.0, 2.0] * 11 + [9.0], 30)),
    "replacement": loader(sampler=lambda: RandomSampler(range(SIZE), replacement=True, num_samples=70)),
    "replacement, generator": loader(
        sampler=lambda: RandomSampler(
            range(SIZE), replacement=True, num_samples=70, generator=torch.Generator().manual_seed(1)
        )
    ),
    "batch sampler": loader(batch_sampler=lambda: BatchSampler(RandomSampler(range(SIZE)), 5, True)),
    "own batch sampler": loader(batch_sampler=Buckets),
    "distributed": loader(sampler=lambda: DistributedSampler(range(SIZE), 2, 1, seed=3)),
    "eager": loader(sampler=Eager),
    "own list": loader(sampler=OwnList),
    "set epoch": loader(sampler=Growing),
    "seeded per epoch": loader(shuffle=True, generator=torch.Generator),
    "seedable": loader(sampler=Seedable),
    "dataset's own generator": loader(OwnGenerator, shuffle=True),
    "iterable": loader(Stream),
    "iterable, shuffled in a buffer": loader(Buffered),
    "iterable, persistent": loader(Stream, persistent_workers=True),
    "iterable with state": loader(Resumable),
    "iterable with state, persistent": loader(Resumable, persistent_workers=True),
}


def step(batch: Any) -> tuple[bytes, float, float, float]:
    """A step of training: it has the batch and draws from every stream, except that of one who shuffles."""
    python = random.random() if batch.shape[-1] > 1 else 0.0
    return batch.numpy().tobytes(), float(torch.rand(())), python, float(np.random.rand())


def seed_all(seed: int) -> None:
    torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)


def prepare(loader: DataLoader[Any], epoch: int) -> None:
    """What scripts write in front of an epoch's loop."""
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)
    if loader.generator is not None and loader.generator.initial_seed() != 9:
        loader.generator.manual_seed(40 + epoch)


def plain(build: Callable[[int], DataLoader[Any]], workers: int, seed: int = 0) -> list[Any]:
    seed_all(seed)
    loader = build(workers)
    seen = []
    for epoch in range(EPOCHS):
        prepare(loader, epoch)
        seen += [step(batch) for batch in loader]
    return seen


def fed(
    build: Callable[[int], DataLoader[Any]],
    workers: int,
    kept: tuple[dict[str, Any], dict[str, Any]] | None = None,
    upto: int | None = None,
    seed: int = 0,
    *,
    between: bool = False,
) -> tuple[list[Any], tuple[dict[str, Any], dict[str, Any]]]:
    """The same loop through a feed, from a checkpoint or from the beginning, up to so many batches;
    with `between`, to the end of the epoch that has the last of them."""
    seed_all(seed)
    loader = build(workers)
    if kept is not None:
        torch.rand(3), random.random()  # a script draws on its way to the loop
    feed: Feed | None = None
    seen: list[Any] = []
    at = kept[0]["position"] if kept else {"epoch": 0, "finished": False}
    for epoch in range(at["epoch"] + at["finished"], EPOCHS):
        prepare(loader, epoch)
        if feed is None:  # a run makes it when the loop asks for it
            feed = Feed(loader, name="train", seed=None)
            if kept is not None:
                feed.load_state_dict(kept[0])
                put_back(kept[1])
        for batch in feed.batches(epoch):
            seen.append(step(batch))
            if len(seen) == upto and not between:
                break
        if upto is not None and len(seen) >= upto:
            break
    assert feed is not None
    state = feed.state_dict(), marks()
    feed.close()
    return seen, state


QUICK = {"shuffled", "persistent, generator", "own list", "replacement, generator", "iterable, persistent"}
CASES = [
    pytest.param(kind, workers, marks=[] if workers == 0 or kind in QUICK else pytest.mark.torture)
    for kind in KINDS
    for workers in (0, 2)
]


@pytest.mark.parametrize(("kind", "workers"), CASES)
def test_a_run_that_nothing_happens_to_computes_what_the_bare_loop_computes(kind: str, workers: int) -> None:
    assert fed(KINDS[kind], workers)[0] == plain(KINDS[kind], workers)


@pytest.mark.parametrize(("kind", "workers"), CASES)
def test_killed_anywhere_it_goes_on_as_the_bare_loop_would(kind: str, workers: int) -> None:
    whole = plain(KINDS[kind], workers)
    per_epoch = len(whole) // EPOCHS
    points = {per_epoch, per_epoch + 3} if workers else range(1, len(whole))
    for point in sorted(points):
        got, state = fed(KINDS[kind], workers, upto=point)
        rest, _ = fed(KINDS[kind], workers, state, seed=5)
        assert got + rest == whole, f"killed after batch {point}"


@pytest.mark.parametrize(("kind", "workers"), CASES)
def test_killed_between_two_epochs_it_begins_the_next_as_the_script_has_it(kind: str, workers: int) -> None:
    whole = plain(KINDS[kind], workers)
    for point in (1, len(whole) // 2):
        got, state = fed(KINDS[kind], workers, upto=point, between=True)
        rest, _ = fed(KINDS[kind], workers, state, seed=5)
        assert got + rest == whole, f"killed behind the epoch of batch {point}"


def test_the_seed_of_torch_decides_the_data() -> None:
    orders = {tuple(x[0] for x in fed(KINDS["shuffled"], 0, seed=seed)[0]) for seed in range(5)}
    assert len(orders) == 5


def rows(seen: list[Any]) -> list[float]:
    return [row[0] for batch in seen for row in np.frombuffer(batch[0]).reshape(-1, 4).tolist()]


@pytest.mark.parametrize("now", [0, 3])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_another_number_of_workers_inside_an_epoch_keeps_the_order_and_says_what_it_does_not_keep(
    now: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole = plain(KINDS["shuffled"], 2)
    got, state = fed(KINDS["shuffled"], 2, upto=3)
    rest, _ = fed(KINDS["shuffled"], now, state)
    assert "begun with 2 workers" in caplog.text
    assert "seeded per sample until the epoch ends" in caplog.text
    assert rows(got + rest)[:SIZE] == rows(whole)[:SIZE]
    again, _ = fed(KINDS["shuffled"], now, state)
    assert again == rest


def test_a_pass_begun_by_seeds_per_sample_ends_by_them_and_the_next_is_torchs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As after an upgrade: a position of version 1 holds neither digest nor recipe."""
    old = Feed(KINDS["shuffled"](0), name="train", seed=0)
    batches = old.batches(1)
    got = [next(batches) for _ in range(2)]
    state = old.state_dict()
    state["version"] = 1
    for name in ("digest", "recipe"):
        state["position"].pop(name)
    seed_all(0)
    feed = Feed(KINDS["shuffled"](0), name="train", seed=None)
    feed.load_state_dict(state)
    assert "ends with it" in caplog.text
    rest = list(feed.batches(1))
    assert len(got) + len(rest) == 6
    seed_all(3)
    bare = [step(batch) for batch in KINDS["shuffled"](0)]
    seed_all(3)
    assert [step(batch) for batch in feed.batches(2)] == bare


class Whimsical(Sampler[int]):
    """Gives other indices in every process, with nothing that could be put back."""

    def __init__(self) -> None:
        self._numbers = iter(np.random.default_rng().permutation(SIZE).tolist())

    def __iter__(self) -> Iterator[int]:
        return self._numbers

    def __len__(self) -> int:
        return SIZE


def test_indices_that_are_not_those_of_before_are_an_error_and_not_other_data() -> None:
    build = loader(sampler=Whimsical)
    _, state = fed(build, 0, upto=3)
    with pytest.raises(IncompatibleState, match="12 indices that Whimsical gave before the restart"):
        fed(build, 0, state)


class Fragile(Dataset[int]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise OSError("one file cannot be read")
        return index


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loading_error_that_is_caught_does_not_end_the_epoch(workers: int, seed: int | None) -> None:
    def through(batches: Iterator[Any]) -> list[list[int]]:
        got = []
        while True:
            try:
                got.append(next(batches).tolist())
            except StopIteration:
                return got
            except OSError:
                got.append([])

    bare = through(iter(DataLoader(Fragile(), 3, num_workers=workers)))
    feed = Feed(DataLoader(Fragile(), 3, num_workers=workers), name="train", seed=seed)
    assert through(feed.batches(0)) == bare == [[0, 1, 2], [], [6, 7, 8], [9, 10, 11]]
    assert feed.state_dict()["position"]["consumed"] == 12


class Filtering(DataLoader[Any]):
    """As PyG's loaders: what the workers made goes through a function of the loader's."""

    def _get_iterator(self) -> Any:
        return (batch + 100 for batch in super()._get_iterator())


def test_a_loader_with_an_iterator_of_its_own_gives_what_that_gives() -> None:
    def build(workers: int) -> DataLoader[Any]:
        return Filtering(Noisy(SIZE), 4, shuffle=True, num_workers=workers)

    whole = plain(build, 2)
    got, state = fed(build, 2, upto=4)
    assert got + fed(build, 2, state)[0] == whole


class Broken:
    """A loader whose state cannot be had."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(6))

    def state_dict(self) -> dict[str, Any]:
        raise RuntimeError("not while iterating")

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def test_a_loader_whose_state_raises_is_counted_and_read_again(caplog: pytest.LogCaptureFixture) -> None:
    feed = Feed(Broken(), name="train", seed=None)
    batches = feed.batches(0)
    assert [next(batches) for _ in range(4)] == [0, 1, 2, 3]
    state = feed.state_dict()
    assert "state_dict() raised RuntimeError('not while iterating')" in caplog.text
    resumed = Feed(Broken(), name="train", seed=None)
    resumed.load_state_dict(state)
    assert list(resumed.batches(0)) == [4, 5]
