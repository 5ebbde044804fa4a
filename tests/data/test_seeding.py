"""Seeds are part of the format: they must be the same for ever, and different from each other."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.data.seeding import (
    FOR_SAMPLES,
    batch_seed,
    begin_loading,
    derive,
    index_seed,
    index_seeds,
    mix,
    sample_seed,
)


def test_seeds_never_change_between_versions() -> None:
    assert mix(0) == 0xE220A8397B1DCDAF  # the first output of SplitMix64 from state 0, as published
    assert derive(1, 2, 3) == 0xD0734750FDE362B3
    assert index_seed(derive(1, 2, 3), 17) == 0x6D6D31444ACF918E
    assert index_seed(derive(1, 2, 3), "img/0017.png") == 0x4C21D1F32BEAFDB4


def test_every_sample_of_every_epoch_has_a_seed_of_its_own() -> None:
    seeds = {
        index_seed(derive(FOR_SAMPLES, seed, epoch), index)
        for seed in (0, 1)
        for epoch in range(5)
        for index in range(20_000)
    }
    assert len(seeds) == 2 * 5 * 20_000


def test_a_batch_does_not_share_the_seed_of_its_first_sample() -> None:
    assert batch_seed(9, 5) != index_seed(9, 5)


@pytest.mark.parametrize("index", [np.int64(7), np.uint8(7), 7])
def test_equal_indices_of_any_type_have_equal_seeds(index: object) -> None:
    assert index_seed(1, index) == index_seed(1, 7)


@pytest.mark.parametrize(
    "indices",
    [[], [0], [5, 3, 2**63, 2**64 - 1], [np.int64(4), 7], [-1, 2], ["a", 1], [True, False], [2**64]],
)
def test_seeds_of_many_are_the_seeds_of_each(indices: list[object]) -> None:
    base = derive(1, 2, 3)
    assert index_seeds(base, indices) == [index_seed(base, index) for index in indices]


def test_keys_that_are_not_numbers_have_seeds() -> None:
    assert len({index_seed(1, key) for key in ("a", "b", ("a", 1), slice(0, 4), None)}) == 5


def test_sample_seed_is_that_of_the_epoch_being_loaded() -> None:
    outside = sample_seed(3)
    begin_loading(derive(FOR_SAMPLES, 0, 8))
    try:
        assert sample_seed(3) == index_seed(derive(FOR_SAMPLES, 0, 8), 3) != outside
    finally:
        begin_loading(None)
    assert sample_seed(3) == outside
