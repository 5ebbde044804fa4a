"""The order of an epoch: a permutation, the same for ever, readable anywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.data.order import InSequence, shuffled

SIZES = [1, 2, 3, 7, 100, 65535, 65536, 65537, 100_000, 131_072, 65536 * 4, 131_073, 262_145]


@pytest.mark.parametrize("size", SIZES)
def test_every_index_comes_exactly_once(size: int) -> None:
    order = shuffled(size, seed=7, epoch=3)
    assert (np.bincount(order.read(0, size), minlength=size) == 1).all()


def test_five_million_indices_come_exactly_once() -> None:
    order = shuffled(5_000_000, seed=0, epoch=0)
    parts = [order.read(at, at + 500_000) for at in range(0, 5_000_000, 500_000)]
    assert (np.bincount(np.concatenate(parts), minlength=5_000_000) == 1).all()


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([1000, 70_000, 200_001]), st.integers(0, 2**40), st.integers(0, 100), st.data())
def test_a_part_read_alone_equals_the_same_part_of_the_whole(size, seed, epoch, data) -> None:
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    whole = shuffled(size, seed, epoch).read(0, size)
    assert np.array_equal(shuffled(size, seed, epoch).read(start, stop), whole[start:stop])


def test_orders_never_change_between_versions() -> None:
    # Fixed for ever: a run that is resumed by a newer holdfast must find the order it began with.
    assert shuffled(10, seed=0, epoch=0).read(0, 10).tolist() == [3, 1, 9, 2, 0, 4, 6, 8, 7, 5]
    large = shuffled(1_000_000, seed=1, epoch=2).read(500_000, 500_006).tolist()
    assert large == [370688, 308113, 115480, 715015, 483326, 501931]
    assert shuffled(2**33, seed=1, epoch=2).read(2**32, 2**32 + 3).tolist() == [
        2795517731,
        4455130713,
        6828593,
    ]


@pytest.mark.parametrize("size", [1000, 100_000])
def test_epochs_and_seeds_give_unrelated_orders(size: int) -> None:
    orders = [shuffled(size, seed, epoch).read(0, size) for seed in (0, 1) for epoch in (0, 1)]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            # Two random permutations agree in one place on average.
            assert (one == other).sum() < 10
            assert abs(np.corrcoef(one, other)[0, 1]) < 0.15


def test_a_scrambled_order_looks_random() -> None:
    size = 200_000
    drawn = shuffled(size, seed=5, epoch=1).read(0, size)
    # Where the first tenth of the order falls in the dataset: even over 50 bins (chi-square, p about 1e-6).
    bins = np.bincount(drawn[: size // 10] * 50 // size, minlength=50)
    expected = size / 10 / 50
    assert ((bins - expected) ** 2 / expected).sum() < 110
    # Neighbours in the order are not neighbours in the dataset: mean distance of random pairs is a third.
    distance = np.abs(np.diff(drawn)).mean() / size
    assert 0.32 < distance < 0.35
    # As many rises as falls.
    assert abs((np.diff(drawn) > 0).mean() - 0.5) < 0.01
    # Which half of the dataset an index comes from says nothing about the next one.
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.02


def test_reading_deep_into_a_huge_dataset_needs_no_memory_for_it() -> None:
    order = shuffled(10**12, seed=0, epoch=0)
    drawn = order.read(9 * 10**11, 9 * 10**11 + 1000)
    assert len(set(drawn.tolist())) == 1000
    assert drawn.min() >= 0
    assert drawn.max() < 10**12


def test_sequence_is_the_sequence() -> None:
    assert InSequence(10).read(3, 6).tolist() == [3, 4, 5]
