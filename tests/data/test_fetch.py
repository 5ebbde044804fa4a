"""What happens inside a sample stays inside it: seeded by itself, unseen by training."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from noisy_samples import Noisy, Quiet
from torch.utils.data import DataLoader, Dataset, get_worker_info

from holdfast.data.seeding import sample_seed
from holdfast.data.torch_feed import Feed
from holdfast.data.torch_streams import STREAMS


def rows(loader: DataLoader[Any], epoch: int = 0, **options: Any) -> dict[int, tuple[float, ...]]:
    batches = list(Feed(loader, name="train", seed=5, **options).batches(epoch))
    return {int(row[0]): tuple(row.tolist()) for batch in batches for row in batch}


@pytest.fixture
def watched_streams():
    """Fails the test if it moves one of training's generators."""
    random.gauss(0, 1), np.random.randn(), torch.randn(3)  # with spare normals, the hard case
    marks = [stream.mark() for stream in STREAMS]
    yield
    moved = [s.name for s, mark in zip(STREAMS, marks, strict=True) if s.moved(mark)]
    assert not moved


@pytest.mark.usefixtures("watched_streams")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch", [1, 4, 13])
def test_a_sample_is_the_same_for_any_workers_and_batch_size(workers: int, batch: int) -> None:
    reference = rows(DataLoader(Noisy(29), batch_size=29, shuffle=True))
    assert rows(DataLoader(Noisy(29), batch_size=batch, shuffle=True, num_workers=workers)) == reference
    assert rows(DataLoader(Noisy(29), batch_size=batch, num_workers=workers)) == reference


def test_samples_and_epochs_do_not_share_their_randomness() -> None:
    loader = DataLoader(Noisy(29), batch_size=4)
    both = [*rows(loader, 0).values(), *rows(loader, 1).values()]
    for column in (1, 2, 3):
        assert len({row[column] for row in both}) == 58


class RarelyNoisy(Dataset[torch.Tensor]):
    """Every tenth sample from the twentieth on draws; those before show nothing of it."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = [0.0, 0.0, 0.0]
        if index >= 20 and index % 10 == 3:
            noise = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return torch.tensor([index, *noise], dtype=torch.float64)


@pytest.mark.usefixtures("watched_streams")
@pytest.mark.parametrize("workers", [0, 2])
def test_randomness_that_begins_late_is_seeded_all_the_same(workers: int) -> None:
    reference = rows(DataLoader(RarelyNoisy(), batch_size=60))
    assert len({row[1] for row in reference.values()}) == 5
    assert rows(DataLoader(RarelyNoisy(), batch_size=5, num_workers=workers)) == reference


class Masking:
    """A collate function that draws, as language-model collators do."""

    def __call__(self, samples: list[int]) -> torch.Tensor:
        drawn = [random.random(), np.random.rand(), float(torch.rand(()))]
        return torch.tensor([[float(i), *drawn] for i in samples], dtype=torch.float64)


@pytest.mark.usefixtures("watched_streams")
@pytest.mark.parametrize("workers", [0, 2])
def test_randomness_in_collating_belongs_to_the_batch(workers: int) -> None:
    def loader(n: int) -> DataLoader[Any]:
        return DataLoader(Quiet(20), batch_size=4, shuffle=True, collate_fn=Masking(), num_workers=n)

    assert rows(loader(workers)) == rows(loader(0))
    assert len({row[1] for row in rows(loader(0)).values()}) == 5


class WholeBatches(Quiet):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        noise = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return [torch.tensor([float(i), *noise], dtype=torch.float64) for i in indices]


@pytest.mark.usefixtures("watched_streams")
def test_a_dataset_that_loads_whole_batches_is_asked_for_whole_batches() -> None:
    once = rows(DataLoader(WholeBatches(20), batch_size=4, shuffle=True))
    assert once == rows(DataLoader(WholeBatches(20), batch_size=4, shuffle=True, num_workers=2))
    assert len({row[1] for row in once.values()}) == 5


class Failing(Noisy):
    def __getitem__(self, index: int) -> torch.Tensor:
        sample = super().__getitem__(index)
        if index == 6:
            raise LookupError("sample 6 is broken")
        return sample


@pytest.mark.usefixtures("watched_streams")
def test_a_sample_that_fails_leaves_trainings_generators_alone() -> None:
    with pytest.raises(LookupError):
        rows(DataLoader(Failing(12), batch_size=4))
    with pytest.raises(LookupError):
        rows(DataLoader(Failing(12), batch_size=12))


def test_quiet_samples_are_loaded_once_each() -> None:
    dataset = Quiet(100)
    list(Feed(DataLoader(dataset, batch_size=7, shuffle=True), name="train", seed=0).batches(0))
    assert dataset.loads == 100


def test_unseeded_samples_draw_from_trainings_generators_as_they_do_bare() -> None:
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    feed = Feed(DataLoader(Noisy(8), batch_size=4), name="train", seed=0, seed_samples=False)
    ours = torch.cat(list(feed.batches(0)))
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    assert torch.equal(ours, torch.stack([Noisy(8)[i] for i in range(8)]))


@pytest.mark.usefixtures("watched_streams")
def test_unseeded_workers_do_not_repeat_their_numbers_after_a_resume() -> None:
    def feed() -> Feed:
        loader = DataLoader(Noisy(40), batch_size=4, num_workers=2)
        return Feed(loader, name="train", seed=0, seed_samples=False)

    first = feed()
    batches = first.batches(0)
    before = [next(batches) for _ in range(4)]
    second = feed()
    second.load_state_dict(first.state_dict())
    later = list(second.batches(0))
    assert not {float(x) for b in before for x in b[:, 3]} & {float(x) for b in later for x in b[:, 3]}


class OwnGenerator(Quiet):
    def __getitem__(self, index: int) -> torch.Tensor:
        rng = np.random.default_rng(sample_seed(index))
        return torch.tensor([float(index), rng.random()], dtype=torch.float64)


def test_a_dataset_with_its_own_generator_can_ask_for_the_samples_seed() -> None:
    reference = rows(DataLoader(OwnGenerator(20), batch_size=20))
    assert rows(DataLoader(OwnGenerator(20), batch_size=3, num_workers=2)) == reference
    assert rows(DataLoader(OwnGenerator(20), batch_size=3), epoch=1) != reference


class KnowsItsWorker(Dataset[list[int]]):
    def __init__(self) -> None:
        self.opened_by = -1

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, self.opened_by])


def open_files(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert isinstance(info.dataset, KnowsItsWorker)
    info.dataset.opened_by = worker


def test_worker_init_finds_the_users_own_dataset() -> None:
    loader = DataLoader(KnowsItsWorker(), batch_size=2, num_workers=2, worker_init_fn=open_files)
    batches = list(Feed(loader, name="train", seed=0).batches(0))
    assert [batch[:, 1].tolist() for batch in batches] == [[0, 0], [1, 1], [0, 0], [1, 1]]


def test_a_loader_of_single_samples_gives_single_samples() -> None:
    bare = list(DataLoader(Quiet(5), batch_size=None))
    assert list(Feed(DataLoader(Quiet(5), batch_size=None), name="train", seed=0).batches(0)) == bare


def test_spawned_workers_load_the_same_samples() -> None:
    loader = DataLoader(Noisy(8), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    assert rows(loader) == rows(DataLoader(Noisy(8), batch_size=4))
