"""What ranks say about tensors they hold with others."""

from __future__ import annotations

import pytest

from holdfast.checkpoints.rank_claims import RankClaims, alike_by_object, require_agreement
from holdfast.errors import SaveError


def holds(**groups: str) -> RankClaims:
    """`r0_1="x"`: this rank wrote x for ranks 0-1."""
    return RankClaims(contents={"model": {g[1:].replace("_", "-"): d for g, d in groups.items()}})


def test_groups_of_one_are_alike_only_if_every_rank_holds_the_same() -> None:
    assert alike_by_object([holds(r0="x"), holds(r1="x")]) == {"model": True}
    assert alike_by_object([holds(r0="x"), holds(r1="y")]) == {"model": False}


def test_groups_are_compared_member_by_member() -> None:
    same = [holds(r0_1="a"), holds(r0_1="b"), holds(r2_3="a"), holds(r2_3="b")]
    assert alike_by_object(same) == {"model": True}
    swapped = [holds(r0_1="a"), holds(r0_1="b"), holds(r2_3="b"), holds(r2_3="a")]
    assert alike_by_object(swapped) == {"model": False}


def test_groups_of_different_sizes_are_never_taken_for_alike() -> None:
    assert alike_by_object([holds(r0="a"), holds(r1_2="a"), holds(r1_2="b")]) == {"model": False}


def test_shards_of_a_group_and_copies_of_each_rank_can_be_alike_together() -> None:
    ranks = [
        holds(r0_1="a", r0="n"),
        holds(r0_1="b", r1="n"),
        holds(r2_3="a", r2="n"),
        holds(r2_3="b", r3="n"),
    ]
    assert alike_by_object(ranks) == {"model": True}


def test_what_all_ranks_hold_together_needs_no_word() -> None:
    assert alike_by_object([RankClaims(), RankClaims()]) == {}


def test_ranks_of_one_group_must_have_divided_it_alike() -> None:
    require_agreement([RankClaims({"0-1": "a"}), RankClaims({"0-1": "a"}), RankClaims({"2": "b"})])
    with pytest.raises(SaveError, match="ranks 0 and 1 hold different tensors"):
        require_agreement([RankClaims({"0-1": "a"}), RankClaims({"0-1": "c"})])
    with pytest.raises(SaveError, match="ranks 0 and 1 hold different tensors"):
        require_agreement([RankClaims({"0-1": "a"}), RankClaims()])


def test_ranks_of_one_group_must_hold_the_same_where_both_looked() -> None:
    looked, other, not_looked = (RankClaims({"0-1": "a"}, s) for s in ({"0-1": "v"}, {"0-1": "w"}, {}))
    require_agreement([looked, not_looked])
    require_agreement([looked, looked])
    with pytest.raises(SaveError, match="ranks 0 and 1 hold different values"):
        require_agreement([looked, other])
