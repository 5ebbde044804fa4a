"""Sharing one global order between ranks: arithmetic that must lose nothing and repeat nothing."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from noisy_samples import Quiet
from torch.utils.data import DataLoader, DistributedSampler

from holdfast.data.order import InSequence, Listed, shuffled
from holdfast.data.split import Share, Turn, turns_of_order, turns_of_stream


def own(turn: Turn) -> list[int]:
    return turn.items[: len(turn.items) - turn.padding]


def taker(items):
    stream = iter(items)
    return lambda count: list(islice(stream, count))


@settings(max_examples=200, deadline=None)
@given(
    size=st.integers(0, 200),
    legs=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(0, 6)), min_size=1, max_size=5),
    streamed=st.booleans(),
)
def test_any_change_of_world_and_batch_size_leaves_every_item_exactly_once(size, legs, streamed) -> None:
    order = shuffled(size, 1, 2) if size else InSequence(0)
    seen: list[int] = []
    at = 0
    for number, (world, batch, steps) in enumerate(legs):
        last_leg = number == len(legs) - 1
        ranks = []
        for rank in range(world):
            share = Share(batch=batch, rank=rank, world=world)
            if streamed:
                turns = turns_of_stream(taker(order.read(0, size).tolist()), at, share)
            else:
                turns = turns_of_order(order, at, share)
            ranks.append(list(turns) if last_leg else list(islice(turns, steps)))
        assert len({len(turns) for turns in ranks}) == 1, "a rank without a batch would hang the others"
        for together in zip(*ranks, strict=True):
            assert len({len(turn.items) for turn in together}) == 1
            assert len({turn.consumed for turn in together}) == 1
            assert sum(turn.padding for turn in together) < world
            seen += [item for turn in together for item in own(turn)]
            at = together[0].consumed
    assert sorted(seen) == list(range(size))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 120), st.integers(1, 5), st.integers(1, 9), st.booleans(), st.booleans())
def test_the_turns_are_those_of_torchs_distributed_sampler(
    size, world, batch, drop_uneven, drop_short
) -> None:
    for rank in range(world):
        sampler = DistributedSampler(Quiet(size), world, rank, seed=3, drop_last=drop_uneven)
        sampler.set_epoch(4)
        bare = [b.tolist() for b in DataLoader(Quiet(size), batch, sampler=sampler, drop_last=drop_short)]
        order = Listed(torch.randperm(size, generator=torch.Generator().manual_seed(7)).numpy())
        share = Share(batch, rank, world, drop_uneven=drop_uneven, drop_short=drop_short)
        ours = [turn.items for turn in turns_of_order(order, 0, share)]
        assert ours == bare
        assert share.turns_in(size) == len(bare)


@settings(max_examples=200, deadline=None)
@example(2, 1, 3, 1, False, False)  # resumed inside what the padding repeats
@given(
    st.integers(0, 60), st.integers(0, 60), st.integers(1, 4), st.integers(1, 7), st.booleans(), st.booleans()
)
def test_an_order_and_a_stream_are_split_alike(size, start, world, batch, uneven, short) -> None:
    order = shuffled(size, 0, 0) if size else InSequence(0)
    start = min(start, size)
    for rank in range(world):
        share = Share(batch, rank, world, drop_uneven=uneven, drop_short=short)
        streamed = turns_of_stream(taker(order.read(0, size).tolist()), start, share)
        assert list(turns_of_order(order, start, share)) == list(streamed)


@pytest.mark.parametrize(("uneven", "short"), [(False, True), (True, False), (True, True)])
def test_what_is_left_out_is_less_than_one_global_batch(uneven: bool, short: bool) -> None:
    for size in range(60):
        shares = [Share(4, rank, 3, drop_uneven=uneven, drop_short=short) for rank in range(3)]
        got = [item for s in shares for turn in turns_of_order(InSequence(size), 0, s) for item in own(turn)]
        assert len(got) == len(set(got)) == size - shares[0].dropped_of(size)
        assert shares[0].dropped_of(size) < shares[0].stride


def test_fewer_items_than_ranks_are_padded_from_the_beginning() -> None:
    turns = [next(turns_of_order(InSequence(2), 0, Share(4, rank, 5))) for rank in range(5)]
    assert [turn.items for turn in turns] == [[0], [1], [0], [1], [0]]
    assert [turn.padding for turn in turns] == [0, 0, 1, 1, 1]
