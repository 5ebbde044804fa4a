"""The comparison of policies: the worked table, and the order that must come out of it."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from itertools import pairwise

import pytest

from holdfast.errors import SetupError
from holdfast.plan.failure_models import PRESETS, Poisson, preset
from holdfast.plan.model import Job, Strategy, TierCost, TierSpeed, equal_loss, parse_tiers, single
from holdfast.plan.monte_carlo import simulate
from holdfast.plan.strategies import OURS, OURS_LEARNED, compare, ours, worthwhile_tiers
from holdfast.policy.belief import belief_from
from holdfast.policy.intervals import exact

HOUR, DAY = 3600.0, 86400.0


def cluster(mtbf: float, near: float) -> dict[str, Strategy]:
    """The settings of the table for clusters: sync 60 s, async 2/120 s, partner 1/15 s and good for 92 %."""
    sync = TierCost("fs", 1.0, 60.0, restart=600.0)
    asynchronous = TierCost("fs", 1.0, 2.0, persist=120.0, restart=600.0)
    two = (
        TierCost("partner", 0.92, 1.0, persist=15.0, restart=near),
        TierCost("fs", 0.08, 0.0, 0.02 * 120, 120.0, 600.0),
    )
    inner = exact(1.0, mtbf / 0.92)
    outer = max(exact(2.4, mtbf / 0.08), 120.0)
    return {
        "hourly sync": single("hourly sync", sync, HOUR),
        "hourly async": single("hourly async", asynchronous, HOUR),
        "Young sync": single("Young sync", sync, exact(60.0, mtbf)),
        "CheckFreq": single("CheckFreq", asynchronous, 120.0),
        "Young async": single("Young async", asynchronous, max(exact(2.0, mtbf), 120.0)),
        "every 10th": Strategy("every 10th", two, (inner, 10 * inner)),
        "own debts": Strategy("own debts", two, (inner, outer)),
        "learned": Strategy("learned", two, belief=belief_from(), budget=0.05),
    }


@pytest.mark.parametrize(
    ("mtbf", "near", "expected"),
    [
        (8.2 * HOUR, 180.0, (0.905, 0.916, 0.918, 0.958, 0.964, 0.980, 0.981, 0.981)),
        (3.1 * HOUR, 180.0, (0.787, 0.793, 0.852, 0.917, 0.920, 0.959, 0.961, 0.961)),
        (0.48 * HOUR, 120.0, (0.201, 0.195, 0.536, 0.626, 0.626, 0.851, 0.855, 0.855)),
    ],
)
def test_the_table_of_the_notes_is_reproduced(mtbf: float, near: float, expected: tuple[float, ...]) -> None:
    seeds = 60 if mtbf < HOUR else 150
    for strategy, value in zip(cluster(mtbf, near).values(), expected, strict=True):
        few = seeds if strategy.belief is None else seeds // 5
        outcome = simulate(strategy, Poisson(mtbf), horizon=90 * DAY, seeds=few)
        assert outcome.goodput == pytest.approx(value, abs=0.006), strategy.name


def job(mtbf: float = 3.1 * HOUR) -> Job:
    tiers = (TierSpeed("partner", 1 / 15, 0.92), TierSpeed("fs", 1 / 120, 1.0))
    return Job(2048, 8, 1.0, mtbf, tiers, stall=2.0, restart=480.0, restart_near=165.0, budget=0.05)


def test_ours_is_best_in_the_comparison_and_learning_costs_little() -> None:
    outcomes = {one.name: one for one in compare(job(), Poisson(3.1 * HOUR), horizon=60 * DAY, seeds=100)}
    best = outcomes.pop(OURS)
    learned = outcomes.pop(OURS_LEARNED)
    assert all(best.goodput > one.goodput for one in outcomes.values())
    assert 1 / learned.goodput - 1 < 1.02 * (1 / best.goodput - 1)
    assert learned.goodput < best.goodput + 3 * best.standard_error  # nor is it better not to know
    for one in (best, learned, *outcomes.values()):
        assert sum(one.breakdown.values()) == pytest.approx(1.0)


def test_a_level_too_dear_for_what_it_saves_is_left_out() -> None:
    useless = replace(
        job(),
        tiers=(TierSpeed("slow partner", 1 / 119, 0.05), TierSpeed("fs", 1 / 120, 1.0)),
        restart_near=480.0,
    )
    kept = worthwhile_tiers(useless)
    assert [one.name for one in kept] == ["fs"]
    assert kept[0].share == pytest.approx(1.0)
    assert kept[0].stall == 2.0  # someone has to pay for the snapshot
    assert len(worthwhile_tiers(job())) == 2


def test_ours_says_which_bound_is_in_force() -> None:
    tight = replace(job(mtbf=600.0), budget=0.005)
    assert ours(tight).limit.startswith("budget")
    assert ours(job(mtbf=1e9)).limit == "none"


def test_equal_loss_spacing_wastes_more_than_even_spacing() -> None:
    tier = TierCost("fs", 1.0, 2.0, persist=0.0, restart=60.0)
    horizon, mtbf = 20 * DAY, 6 * HOUR
    interval = exact(2.0, mtbf)
    even = simulate(single("even", tier, interval), Poisson(mtbf), horizon=horizon, seeds=100)
    growing = equal_loss("uneven", tier, int(horizon / interval), horizon)
    uneven = simulate(growing, Poisson(mtbf), horizon=horizon, seeds=100)
    assert uneven.goodput < even.goodput
    assert sum(uneven.breakdown.values()) == pytest.approx(1.0)


def test_equal_loss_spacing_takes_as_many_saves_as_it_says() -> None:
    horizon, count = 20 * DAY, 5000
    growing = equal_loss("uneven", TierCost("fs", 1.0, 0.001), count, horizon)
    outcome = simulate(growing, Poisson(1e15), horizon=horizon, seeds=2)
    assert float(outcome.saves.mean()) == pytest.approx(count, rel=0.01)
    # The median distance of slots at equal decreases of a loss that falls by five e-folds.
    slots = [-horizon / 5 * math.log(1 - (1 - math.exp(-5)) * i / (count + 1)) for i in range(1, count + 1)]
    apart = statistics.median(after - before for before, after in pairwise(slots))
    assert outcome.intervals[0] == pytest.approx(apart, rel=0.01)


def test_a_growth_of_nothing_gives_what_an_even_interval_gives() -> None:
    tier, horizon, mtbf = TierCost("fs", 1.0, 5.0, persist=30.0, restart=300.0), 30 * DAY, 3 * HOUR
    flat = Strategy("x", (tier,), (400.0,), fall=1e-9)
    growing = simulate(flat, Poisson(mtbf), horizon=horizon, seeds=200)
    by_interval = simulate(single("x", tier, 400.0), Poisson(mtbf), horizon=horizon, seeds=200)
    assert growing.goodput == pytest.approx(by_interval.goodput, abs=0.002)


def test_presets_name_their_source_and_llama_gives_its_three_hours() -> None:
    for one in PRESETS.values():
        assert len(one.source) > 20
    assert preset("llama3-405b").node_mtbf / 2048 == pytest.approx(3.09 * HOUR, rel=0.01)
    with pytest.raises(SetupError, match="there is no preset"):
        preset("mine")


def test_tiers_are_read_as_people_write_them() -> None:
    near, far = parse_tiers(["partner:2GB/s/node", "/lustre:500GB/s"], nodes=100)
    assert (near.bytes_per_second, near.survives) == (200e9, pytest.approx(0.92))
    assert (far.name, far.bytes_per_second, far.survives) == ("/lustre", 500e9, 1.0)
    assert parse_tiers(["memory", "s3://bucket/run:10GB/s"], nodes=2)[0].bytes_per_second == 80e9
    assert parse_tiers(["nvme:1GB/s/node:35%", "/l:1GB/s"], nodes=1)[0].survives == 0.35


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["/lustre"], "how fast is tier"),
        (["/lustre:fast"], "cannot read tier"),
        (["partner:0B/s", "/l:1GB/s"], "cannot have speed 0"),
        ([], "no tier to save to"),
        (["partner", "memory", "/l:1GB/s"], "nearest first"),
    ],
)
def test_tiers_that_make_no_sense_are_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(SetupError, match=sentence):
        parse_tiers(words, nodes=4)
