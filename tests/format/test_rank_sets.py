from __future__ import annotations

import random

import pytest

from holdfast.errors import CorruptCheckpoint
from holdfast.format.rank_sets import parse_ranks, spell_ranks


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([0], "0"),
        ([3, 1, 2, 0], "0-3"),
        (range(0, 1024, 8), "0-1016:8"),
        ([0, 5, 6], "0,5-6"),
        ([0, 2], "0,2"),
        ([0, 1, 4, 5], "0-1,4-5"),
    ],
)
def test_regular_groups_are_short(ranks: list[int], text: str) -> None:
    assert spell_ranks(ranks) == text
    assert parse_ranks(text) == tuple(sorted(ranks))


def test_every_set_comes_back_and_has_one_spelling() -> None:
    dice = random.Random(5)
    for _ in range(300):
        ranks = dice.sample(range(40), dice.randint(1, 12))
        text = spell_ranks(ranks)
        assert parse_ranks(text) == tuple(sorted(ranks))
        assert spell_ranks(reversed(ranks)) == text


@pytest.mark.parametrize(
    "text",
    ["", "-1", "1-0", "0-9:0", "2,1", "0,0", "0-1,1", "01", "0-3:1", "0,1", "9999999", "a", " 1", None, 7,
     "0-1000001", ",".join(["0-1000000"] * 1000)],
)  # fmt: skip
def test_any_other_spelling_is_refused(text: object) -> None:
    with pytest.raises(CorruptCheckpoint):
        parse_ranks(text)
