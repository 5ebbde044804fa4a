"""The rare moments: ends, beginnings, nothing at all, and loaders that are not what they were."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from noisy_samples import Noisy, Quiet, same
from torch.utils.data import DataLoader, Dataset, Sampler

from holdfast.data.torch_feed import Feed
from holdfast.errors import IncompatibleState, SetupError


def feed_of(size: int = 10, batch: int = 4, *, seed: int = 1, state: Any = None, **options: Any) -> Feed:
    feed = Feed(DataLoader(Quiet(size), batch, shuffle=True), name="train", seed=seed, **options)
    if state is not None:
        feed.load_state_dict(state)
    return feed


def seen(feed: Feed, epoch: int, count: int | None = None) -> list[list[int]]:
    got = []
    for batch in feed.batches(epoch):
        got.append(batch.tolist())
        if len(got) == count:
            break
    return got


def test_an_empty_loader_gives_nothing_before_and_after_a_restart() -> None:
    def feed(state: Any = None) -> Feed:
        made = Feed(DataLoader([], batch_size=4), name="train", seed=1)
        if state is not None:
            made.load_state_dict(state)
        return made

    first = feed()
    assert len(first) == 0
    assert list(first.batches(0)) == []
    assert list(feed(first.state_dict()).batches(0)) == []
    assert list(feed(first.state_dict()).batches(1)) == []


def test_a_restart_before_the_first_batch_changes_nothing() -> None:
    feed = feed_of()
    state = feed.state_dict()
    assert seen(feed_of(state=state), 0) == seen(feed, 0)


def test_an_epoch_of_one_batch_is_given_once() -> None:
    feed = feed_of(size=3)
    whole = [seen(feed, epoch) for epoch in range(3)]
    state = feed_of(size=3)
    got = seen(state, 0, 1)
    resumed = feed_of(size=3, state=state.state_dict())
    assert [got + seen(resumed, 0), seen(resumed, 1), seen(resumed, 2)] == whole


def test_a_restart_after_the_last_batch_of_an_epoch_goes_on_with_the_next() -> None:
    feed = feed_of()
    whole = [seen(feed, epoch) for epoch in range(2)]
    for noticed in (False, True):  # whether the loop had come round to notice the end
        first = feed_of()
        seen(first, 0, None if noticed else 3)
        for asks_again in (True, False):
            resumed = feed_of(state=first.state_dict())
            if asks_again:
                assert seen(resumed, 0) == []
            assert seen(resumed, 1) == whole[1]


def test_a_restart_after_the_last_epoch_gives_nothing() -> None:
    feed = feed_of()
    seen(feed, 0), seen(feed, 1)
    resumed = feed_of(state=feed.state_dict())
    assert seen(resumed, 1) == []


def test_a_second_restart_inside_one_epoch_continues() -> None:
    whole = seen(feed_of(size=40), 0)
    state, got = None, []
    for _ in range(4):
        feed = feed_of(size=40, state=state)
        got += seen(feed, 0, 2)
        state = feed.state_dict()
    assert got + seen(feed_of(size=40, state=state), 0) == whole


def test_a_restart_that_pulled_nothing_loses_nothing() -> None:
    first = feed_of(size=40)
    got = seen(first, 0, 3)
    second = feed_of(size=40, state=first.state_dict())
    third = feed_of(size=40, state=second.state_dict())
    assert got + seen(third, 0) == seen(feed_of(size=40), 0)


def flat(batches: list[list[int]]) -> list[int]:
    return sorted(i for batch in batches for i in batch)


def test_a_finished_epoch_can_be_read_again_in_the_same_process_in_another_order() -> None:
    feed = feed_of(size=40)
    first, second = seen(feed, 0), seen(feed, 0)
    assert flat(first) == flat(second) == list(range(40))
    assert first != second
    assert feed.state_dict()["position"]["passes"] == 1


def test_after_a_restart_a_finished_epoch_gives_nothing_once_and_then_all() -> None:
    feed = feed_of()
    whole = seen(feed, 0)
    resumed = feed_of(state=feed.state_dict())
    assert [seen(resumed, 0), flat(seen(resumed, 0))] == [[], flat(whole)]


def test_a_pass_left_unfinished_is_continued_by_the_next_call() -> None:
    feed = feed_of(size=40)
    assert seen(feed, 0, 3) + seen(feed, 0) == seen(feed_of(size=40), 0)


@pytest.mark.parametrize("generator", [True, False])
def test_an_epoch_left_early_does_not_change_the_next_ones_order(generator: bool) -> None:
    def feed(workers: int) -> Feed:
        own = torch.Generator().manual_seed(1) if generator else None
        return Feed(
            DataLoader(Noisy(40), 4, shuffle=True, generator=own, num_workers=workers), name="x", seed=0
        )

    def leave_early_then_read(workers: int, restart: bool) -> list[torch.Tensor]:
        first = feed(workers)
        for _, _batch in zip(range(3), first.batches(0), strict=False):
            pass
        if restart:
            state = first.state_dict()
            first = feed(workers)
            first.load_state_dict(state)
        return list(first.batches(1))

    results = [leave_early_then_read(w, r) for w in (0, 2) for r in (False, True)]
    assert all(same(result, results[0]) for result in results)


def test_whole_passes_are_whole_whatever_was_saved() -> None:
    feed = feed_of(whole_passes=True)
    whole = flat(seen(feed, 0))
    seen(feed, 0, 1)
    assert flat(seen(feed, 0)) == whole
    seen(feed, 1, 1)
    resumed = feed_of(whole_passes=True, state=feed.state_dict())
    assert [flat(seen(resumed, 1)), flat(seen(resumed, 1))] == [whole] * 2


class Steps:
    """Counts the steps of a pretended training."""

    def __init__(self) -> None:
        self.done = 0

    def __call__(self) -> int:
        return self.done


def test_a_loader_that_is_only_looked_at_is_whole_every_time() -> None:
    steps = Steps()
    whole = seen(feed_of(), 0)
    feed = feed_of(steps=steps)
    assert seen(feed, 0, 2) == whole[:2]  # left early, as a quick look is
    assert flat(seen(feed_of(steps=steps, state=feed.state_dict()), 0)) == flat(whole)
    assert flat(seen(feed, 0)) == flat(whole)
    steps.done += 1  # trained on something else, then killed; the next validation of this epoch is a new one
    assert flat(seen(feed_of(steps=steps, state=feed.state_dict()), 0)) == flat(whole)
    assert not feed.trained_on


@pytest.mark.parametrize("accumulated", [1, 2, 3])
def test_one_step_makes_a_loader_a_training_set_before_the_next_batch(accumulated: int) -> None:
    steps = Steps()
    feed = feed_of(size=40, steps=steps)
    batches = feed.batches(0)
    got = [next(batches).tolist() for _ in range(accumulated)]
    steps.done += 1
    state = feed.state_dict()  # as a checkpoint at the very first step boundary does
    resumed = feed_of(size=40, steps=Steps(), state=state)
    assert got + seen(resumed, 0) == seen(feed_of(size=40), 0)


def test_a_step_on_another_loader_does_not_count() -> None:
    steps = Steps()
    train, valid = feed_of(size=40, steps=steps), feed_of(steps=steps)
    for _ in train.batches(0):
        steps.done += 1
        seen(valid, 0)
    assert (train.trained_on, valid.trained_on) == (True, False)


def test_two_loops_over_one_feed_at_once_are_refused() -> None:
    feed = feed_of()
    first = feed.batches(0)
    next(first)
    next(feed.batches(0))
    with pytest.raises(SetupError, match="two loops"):
        next(first)


def test_going_back_to_an_earlier_epoch_is_refused() -> None:
    feed = feed_of()
    seen(feed, 3, 1)
    with pytest.raises(SetupError, match=r"epoch 3.*epoch 2"):
        feed.batches(2)


def test_restoring_a_feed_in_use_is_refused() -> None:
    feed = feed_of()
    seen(feed, 0, 1)
    with pytest.raises(SetupError, match="too late"):
        feed.load_state_dict(feed.state_dict())


def test_another_dataset_size_inside_an_epoch_is_an_error_with_the_way_out() -> None:
    feed = feed_of(size=40)
    seen(feed, 0, 2)
    state = feed.state_dict()
    with pytest.raises(IncompatibleState, match=r"'train'.*40 items and has 41 items.*changed_data"):
        feed_of(size=41, state=state)
    with pytest.warns(UserWarning, match="epoch 0 starts again"):
        again = feed_of(size=41, state=state, changed_data="restart")
    assert sorted(i for batch in seen(again, 0) for i in batch) == list(range(41))


def test_another_dataset_size_between_epochs_is_fine() -> None:
    feed = feed_of(size=40)
    seen(feed, 0)
    resumed = feed_of(size=50, state=feed.state_dict())
    assert seen(resumed, 0) == []
    assert sorted(i for batch in seen(resumed, 1) for i in batch) == list(range(50))


class Fingerprinted(Quiet):
    def __init__(self, size: int, word: str) -> None:
        super().__init__(size)
        self._fingerprint = word


def test_another_fingerprint_inside_an_epoch_is_an_error() -> None:
    feed = Feed(DataLoader(Fingerprinted(9, "aaa"), 4), name="train", seed=0)
    seen(feed, 0, 1)
    other = Feed(DataLoader(Fingerprinted(9, "bbb"), 4), name="train", seed=0)
    with pytest.raises(IncompatibleState, match="fingerprint was aaa and is bbb"):
        other.load_state_dict(feed.state_dict())


def test_another_kind_of_order_inside_an_epoch_is_an_error() -> None:
    feed = feed_of()
    seen(feed, 0, 1)
    with pytest.raises(IncompatibleState, match="shuffled and is sequential"):
        Feed(DataLoader(Quiet(10), 4), name="train", seed=1).load_state_dict(feed.state_dict())


def test_another_seed_holds_from_the_next_epoch_on_with_a_warning() -> None:
    first = feed_of(size=40, seed=1)
    got = seen(first, 0, 4)
    with pytest.warns(UserWarning, match="seed was 1 and is 2"):
        resumed = feed_of(size=40, seed=2, state=first.state_dict())
    assert got + seen(resumed, 0) == seen(feed_of(size=40, seed=1), 0)
    assert seen(resumed, 1) == seen(feed_of(size=40, seed=2), 1)


class Groups(Sampler[list[int]]):
    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    def __iter__(self):
        yield from ([i, i + 1] for i in range(0, 40, 2))

    def __len__(self) -> int:
        return 20


def test_another_batch_size_where_batches_are_counted_is_an_error() -> None:
    feed = Feed(DataLoader(Quiet(40), batch_sampler=Groups(2)), name="train", seed=0)
    seen(feed, 0, 1)
    other = Feed(DataLoader(Quiet(40), batch_sampler=Groups(4)), name="train", seed=0)
    with pytest.raises(IncompatibleState, match="batches held 2 and hold 4"):
        other.load_state_dict(feed.state_dict())


def test_another_batch_size_where_samples_are_counted_goes_on() -> None:
    first = feed_of(size=40, batch=4)
    got = seen(first, 0, 3)
    resumed = feed_of(size=40, batch=7, state=first.state_dict())
    assert sorted(i for batch in got + seen(resumed, 0) for i in batch) == list(range(40))


@pytest.mark.parametrize("broken", [{"version": 99}, {"position": {"epoch": 0}}, {"shape": None}])
def test_a_state_that_cannot_be_read_is_an_error_that_names_the_loader(broken: dict[str, Any]) -> None:
    feed = feed_of()
    seen(feed, 0, 1)
    with pytest.raises(IncompatibleState, match="'train'"):
        feed_of(state={**copy.deepcopy(feed.state_dict()), **broken})


def test_two_loaders_have_two_positions() -> None:
    train, valid = feed_of(size=40), feed_of(size=12, seed=9)
    seen(train, 0, 3), seen(valid, 0)
    again, checked = (
        feed_of(size=40, state=train.state_dict()),
        feed_of(size=12, seed=9, state=valid.state_dict()),
    )
    assert len(seen(again, 0)) == 7
    assert seen(checked, 0) == []


def test_something_that_is_no_loader_is_refused() -> None:
    with pytest.raises(SetupError, match="int is not something"):
        Feed(7, name="x", seed=0)


def test_workers_out_of_order_are_put_in_order_and_said() -> None:
    loader = DataLoader(Quiet(8), 2, num_workers=1, in_order=False)
    with pytest.warns(UserWarning, match="in_order=False is not used"):
        feed = Feed(loader, name="x", seed=0)
    assert [b.tolist() for b in feed.batches(0)] == [[0, 1], [2, 3], [4, 5], [6, 7]]


class DrawsBetween(Dataset[int]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> float:
        return float(index) + random.random() + float(np.random.rand()) + float(torch.rand(()))


@pytest.mark.parametrize("workers", [0, 2])
def test_trainings_numbers_are_those_of_a_run_without_data(workers: int) -> None:
    def trainings_numbers(epochs: list[Any]) -> list[float]:
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        return [
            number
            for epoch in epochs
            for _ in epoch()
            for number in (random.gauss(0, 1), float(np.random.randn()), float(torch.randn(())))
        ]

    feed = Feed(DataLoader(DrawsBetween(), 4, shuffle=True, num_workers=workers), name="x", seed=0)
    with_data = trainings_numbers([lambda: feed.batches(0), lambda: feed.batches(1)])
    assert with_data == trainings_numbers([lambda: range(3)] * 2)
