"""Several levels: closed form against the table of the exact chain, and the engine's own nesting."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from pretend_training import Pretend, gaps

from holdfast.errors import SetupError
from holdfast.policy.build import build_policy
from holdfast.policy.levels import Level, best_pattern, own_interval, waste, worth_keeping
from holdfast.policy.outer_levels import OuterLevel, OuterLevels

HOUR = 3600.0


def three(
    costs: tuple[float, ...], shares: tuple[float, ...], restarts: tuple[float, ...], mtbf: float
) -> list[Level]:
    names = ("process", "node", "site")
    rows = zip(names, costs, shares, restarts, strict=True)
    return [Level(name, cost, share / mtbf, restart=restart) for name, cost, share, restart in rows]


TABLE = [
    ((0.5, 2, 30), (0.20, 0.72, 0.08), (60, 180, 600), 3.1 * HOUR, (220.3, 2893.1), 13, 221.5),
    ((0.2, 0.5, 2), (0.20, 0.72, 0.08), (60, 180, 600), 3.1 * HOUR, (110.1, 747.0), 7, 108.9),
    ((0.5, 2, 30), (0.20, 0.72, 0.08), (60, 180, 600), 0.48 * HOUR, (86.7, 1138.4), 13, 87.2),
    ((0.5, 2, 60), (0.25, 0.68, 0.07), (60, 180, 600), 50 * HOUR, (879.9, 17566.2), 20, 878.9),
    ((1, 3, 600), (0.42, 0.43, 0.15), (10, 30, 900), 6 * HOUR, (390.5, 13145.3), 34, 387.2),
]


@pytest.mark.parametrize(("costs", "shares", "restarts", "mtbf", "intervals", "n", "base"), TABLE)
def test_the_closed_form_equals_the_table(
    costs: tuple[float, ...],
    shares: tuple[float, ...],
    restarts: tuple[float, ...],
    mtbf: float,
    intervals: tuple[float, float],
    n: int,
    base: float,
) -> None:
    pattern = best_pattern(three(costs, shares, restarts, mtbf))
    assert [level.name for level in pattern.levels] == ["node", "site"]
    assert pattern.intervals == pytest.approx(intervals, abs=0.1)
    assert pattern.every == (1, n)
    assert pattern.base == pytest.approx(base, abs=0.1)


def test_two_levels_beat_the_file_system_alone_by_the_amount_of_the_notes() -> None:
    levels = three((0.5, 2, 30), (0.20, 0.72, 0.08), (0, 0, 0), 3.1 * HOUR)
    kept = worth_keeping(levels)
    assert waste(kept, [own_interval(level) for level in kept]) == pytest.approx(0.0389, abs=1e-4)
    alone = Level("site", 30, 1 / (3.1 * HOUR))
    assert waste([alone], [own_interval(alone)]) == pytest.approx(0.0733, abs=1e-4)


@pytest.mark.parametrize(("share", "ratio"), [(0.92, 0.559), (0.22, 0.062)])
def test_a_cheap_level_is_kept_only_below_the_break_even_cost(share: float, ratio: float) -> None:
    for factor, expected in ((0.97, 2), (1.03, 1)):
        levels = [Level("cheap", ratio * factor, share), Level("dear", 1.0, 1 - share)]
        assert len(worth_keeping(levels)) == expected


def test_a_level_is_not_copied_to_faster_than_it_can_persist() -> None:
    assert own_interval(Level("far", cost=0.1, rate=1e-3, persist=600.0)) == 600.0
    assert own_interval(Level("unneeded", cost=0.1, rate=0.0)) == math.inf


def test_the_engine_nests_outer_copies_as_the_closed_form_does() -> None:
    # Row 1 of the table, with the process level merged into the node level as there.
    policy = build_policy("young", mtbf="3.1 h", levels=[OuterLevel("site", share=0.08, cost_seconds=30.0)])
    training = Pretend(policy, step_seconds=5.0, stall=2.0, persist=1.0, level_cost=30.0)
    saves = training.run(20_000)
    outer = [i for i, save in enumerate(saves) if "site" in save.levels]
    assert set(gaps(saves[3:])) == {45}  # 220.3 s, at the next step
    assert {b - a for a, b in pairwise(outer[1:])} == {13}


def test_an_outer_level_never_has_two_copies_in_flight() -> None:
    policy = build_policy("young", mtbf="1 h", levels=[OuterLevel("far", share=0.5, cost_seconds=0.1)])
    training = Pretend(policy, stall=0.5, persist=1.0)
    saves = training.run(20_000)
    assert [save.levels for save in saves if save.levels] == [("far",)]  # never reported done


def test_every_nth_save_goes_out_when_asked() -> None:
    levels = OuterLevels([OuterLevel("fs", share=0.1, copies_every=10)])
    taken = []
    for i in range(50):
        chosen = levels.due(float(i), 1e-4, 1.0)
        levels.save_started(float(i), i, chosen)
        if chosen:
            taken.append(i)
            levels.committed("fs", i, 1.0, 1.0)
    assert taken == [0, 10, 20, 30, 40]


def test_a_failed_outer_copy_is_due_again_at_the_next_save() -> None:
    levels = OuterLevels([OuterLevel("fs", share=0.1, copies_every=10)])
    levels.save_started(0.0, 0, levels.due(0.0, 1e-4, 1.0))
    levels.committed("fs", 0, 1.0, 1.0)
    for i in range(1, 10):
        levels.save_started(float(i), i, levels.due(float(i), 1e-4, 1.0))
    chosen = levels.due(10.0, 1e-4, 1.0)
    assert chosen == ("fs",)
    levels.save_started(10.0, 10, chosen)
    levels.failed(10, "fs")
    assert levels.due(11.0, 1e-4, 1.0) == ("fs",)


def test_the_age_of_an_outer_level_survives_a_restart() -> None:
    levels = OuterLevels([OuterLevel("fs", share=0.1, cost_seconds=5.0)])
    levels.save_started(0.0, 0, ("fs",))
    levels.committed("fs", 0, 5.0, 5.0)
    kept = levels.state(now=900.0)
    again = OuterLevels([OuterLevel("fs", share=0.1)])
    again.restore_state(0.0, kept)
    # Young for this level: sqrt(2·5/1e-5) = 1000 s, of which 900 have passed.
    assert again.due(50.0, 1e-4, 0.0) == ()
    assert again.due(101.0, 1e-4, 0.0) == ("fs",)


def test_contradictory_levels_are_refused() -> None:
    with pytest.raises(SetupError, match="different names"):
        OuterLevels([OuterLevel("a", 0.1), OuterLevel("a", 0.2)])
    with pytest.raises(SetupError, match="more than 1"):
        OuterLevels([OuterLevel("a", 0.6), OuterLevel("b", 0.6)])
    with pytest.raises(SetupError, match="0th"):
        OuterLevel("a", 0.1, copies_every=0)
