"""Loaders that are not torch's: opened at a position, restored by their own state, or read again."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.data import Positioned
from holdfast.data.torch_feed import Feed
from holdfast.data.torch_streams import STREAMS


def restored(loader: Any, feed: Feed, **options: Any) -> Feed:
    other = Feed(loader, name="train", seed=4, **options)
    other.load_state_dict(feed.state_dict())
    return other


def take(feed: Feed, epoch: int, count: int) -> list[Any]:
    return [batch for _, batch in zip(range(count), feed.batches(epoch), strict=False)]


class Opened:
    """Records at which positions it was opened."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, epoch: int, batch: int):
        self.calls.append((epoch, batch))
        torch.rand(1), random.random(), np.random.rand()  # foreign code draws where it likes
        return (f"{epoch}:{n}" for n in range(batch, 6))


def test_a_positioned_loader_is_opened_where_training_stopped() -> None:
    marks = [stream.mark() for stream in STREAMS]
    first = Feed(Positioned(Opened(), batches=6), name="train", seed=4)
    assert len(first) == 6
    assert take(first, 0, 4) == ["0:0", "0:1", "0:2", "0:3"]
    opened = Opened()
    resumed = restored(Positioned(opened, batches=6), first)
    assert list(resumed.batches(0)) == ["0:4", "0:5"]
    assert list(resumed.batches(1)) == [f"1:{n}" for n in range(6)]
    assert opened.calls == [(0, 4), (1, 0)]
    assert not any(s.moved(mark) for s, mark in zip(STREAMS, marks, strict=True))


class Stateful:
    def __init__(self) -> None:
        self.at, self.loads = 0, 0

    def __iter__(self):
        while self.at < 10:
            self.at += 1
            self.loads += 1
            yield self.at - 1
        self.at = 0

    def __len__(self) -> int:
        return 10

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("point", range(10))
def test_a_loader_with_its_own_state_is_restored_by_it(point: int) -> None:
    first = Feed(Stateful(), name="train", seed=4)
    got = take(first, 0, point + 1)
    loader = Stateful()
    resumed = restored(loader, first)
    assert got + list(resumed.batches(0)) == list(range(10))
    assert loader.loads == 9 - point
    assert list(resumed.batches(1)) == list(range(10))


@pytest.mark.parametrize("left_at", [3, 10])
def test_the_next_epoch_of_a_restored_stateful_loader_is_whole(left_at: int) -> None:
    first = Feed(Stateful(), name="train", seed=4)
    take(first, 0, left_at)
    assert list(restored(Stateful(), first).batches(1)) == list(range(10))


def test_a_finished_stateful_loader_gives_nothing_once() -> None:
    first = Feed(Stateful(), name="train", seed=4)
    assert list(first.batches(0)) == list(range(10))
    resumed = restored(Stateful(), first)
    assert list(resumed.batches(0)) == []
    assert list(resumed.batches(1)) == list(range(10))


def test_a_list_of_batches_is_read_from_its_middle_without_a_word() -> None:
    batches = ["a", "b", "c", "d"]
    first = Feed(batches, name="train", seed=4)
    assert take(first, 0, 2) == ["a", "b"]
    assert list(restored(batches, first).batches(0)) == ["c", "d"]


class Augmenting:
    """Any iterable of batches, with randomness of its own."""

    def __iter__(self):
        for i in range(8):
            yield (i, random.random(), float(np.random.rand()), float(torch.rand(())))


def test_an_iterable_without_state_is_read_again_and_said() -> None:
    marks = [stream.mark() for stream in STREAMS]
    whole = list(Feed(Augmenting(), name="train", seed=4).batches(0))
    first = Feed(Augmenting(), name="train", seed=4)
    got = take(first, 0, 5)
    with pytest.warns(UserWarning, match=r"Augmenting keeps no state.*Positioned"):
        got += list(restored(Augmenting(), first).batches(0))
    assert got == whole
    assert not any(s.moved(mark) for s, mark in zip(STREAMS, marks, strict=True))


def test_reading_again_leaves_trainings_generators_alone_even_unseeded() -> None:
    first = Feed(Augmenting(), name="train", seed=4, seed_samples=False)
    take(first, 0, 5)
    resumed = restored(Augmenting(), first, seed_samples=False)
    marks = [stream.mark() for stream in STREAMS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = resumed.batches(0)
        random.seed(5)
        expected = random.random()
        random.seed(5)
        assert next(batches)[:2] == (5, expected)
    for stream, mark in zip(STREAMS, marks, strict=True):
        stream.restore(mark)


def test_a_restored_position_past_a_shorter_iterable_ends_quietly() -> None:
    first = Feed(Augmenting(), name="train", seed=4)
    take(first, 0, 7)
    with pytest.warns(UserWarning, match="keeps no state"):
        assert len(list(restored(Augmenting(), first).batches(0))) == 1
