"""The one engine: each named policy as a setting, its bounds, its forced events, its way through trouble."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise

import pytest
from pretend_training import Pretend, gaps

from holdfast.policy import intervals
from holdfast.policy.belief import belief_from
from holdfast.policy.bounds import Situation, bounds_for
from holdfast.policy.build import build_policy
from holdfast.policy.debt import FIRST_SAVE_SECONDS, FIRST_SAVE_STEPS
from holdfast.policy.failures import FailureHistory, Spell
from holdfast.policy.observation import Observation, SaveCost
from holdfast.policy.profile import Profile

HOUR = 3600.0


# Every named policy equals its formula.


def test_checkfreq_saves_every_k_steps_of_its_formula() -> None:
    training = Pretend(build_policy("checkfreq", budget=0.05))
    assert set(gaps(training.run(2000))[3:]) == {intervals.checkfreq_steps(0.25, 0.5, 6.0, 0.05)}


def test_checkfreq_never_queues_persists_when_stalls_are_cheap() -> None:
    training = Pretend(build_policy("checkfreq", budget=0.05), stall=0.01)
    assert set(gaps(training.run(2000))[3:]) == {22, 24}  # 24: a look at two undisturbed steps


@pytest.mark.parametrize("name", ["young", "daly", "availability"])
def test_named_formulas_set_the_gap(name: str) -> None:
    mtbf = 3.1 * HOUR
    policy = build_policy(name, mtbf=mtbf)
    policy.restored(1000.0, 0, 600.0)
    training = Pretend(policy, stall=2.0)
    formula = {
        "young": intervals.young(2.0, mtbf),
        "daly": intervals.daly(2.0, mtbf),
        "availability": intervals.availability_optimal(2.0, mtbf, 600.0),
    }[name]
    for gap in gaps(training.run(20_000))[3:]:
        assert gap * 0.25 == pytest.approx(formula, abs=0.25)


def test_auto_without_failures_seen_starts_dense_and_thins_out() -> None:
    training = Pretend(build_policy("auto"), stall=2.0)
    saves = training.run(40_000)[2:]
    found = gaps(saves)
    for save, gap in list(zip(saves, found, strict=False))[3:]:
        # The debt grows with the belief as it is meanwhile; two thirds into the gap stand for all of it.
        age = save.at - 1000.0 + gap * 0.25 * 2 / 3
        expected = max(intervals.exact(2.0, 1 / belief_from().mean(age)), 2.0 / 0.03)
        assert gap * 0.25 == pytest.approx(expected, rel=0.06)
    assert found[-1] > 3 * found[3]  # quiet time is evidence: the interval grows


def test_the_second_save_of_a_run_comes_as_the_rule_says_and_not_minutes_later() -> None:
    training = Pretend(build_policy("auto"), step_seconds=0.05, stall=0.015, persist=0.1)
    first, second = training.run(400)[:2]
    assert first.reason == "first save"
    assert second.at - first.at < 5.0


def test_the_first_save_comes_sooner_where_failures_have_been_near() -> None:
    near = FailureHistory(tuple(Spell(100.0 * i, 100.0 * i + 20, "failure") for i in range(3)))
    quiet = Pretend(build_policy("auto"), step_seconds=0.5, stall=0.1).run(60)
    hurried = Pretend(build_policy("auto", history=near), step_seconds=0.5, stall=0.1).run(60)
    assert (quiet[0].step, quiet[0].reason) == (50, "first save")
    assert hurried[0].reason == "first save"
    assert hurried[0].step < 20


def test_a_cost_that_was_measured_in_a_bad_moment_is_put_right_by_processes_that_save_once() -> None:
    known = Profile(step_seconds=0.25, stall_seconds=0.05, cost_seconds=2.0, persist_seconds=0.5, saves=2)
    for _ in range(6):
        policy = build_policy("auto", profile=known)
        policy.restored(0.0, 100, 1.0)
        training = Pretend(policy, stall=0.05, persist=0.5, now=0.0, step=100)
        while not training.saves:
            training.run(1)
        training.run(8)
        known = policy.profile
    assert known.cost_seconds is not None
    assert known.cost_seconds < 0.3


def test_after_a_failure_saves_are_dense_at_once_if_their_cost_is_known() -> None:
    known = Profile(step_seconds=0.05, stall_seconds=0.015, cost_seconds=0.015, persist_seconds=0.1, saves=9)
    history = FailureHistory(tuple(Spell(100.0 * i, 100.0 * i + 25, "failure") for i in range(3)))
    policy = build_policy("auto", profile=known, history=history)
    policy.restored(1000.0, 500, 1.0)
    saves = Pretend(policy, step_seconds=0.05, stall=0.015, persist=0.1, step=500).run(200)
    assert saves[0].at - 1000.0 < 1.5
    assert max(gaps(saves)) * 0.05 < 1.5


def test_a_step_time_that_varies_by_half_costs_no_more_than_a_hundredth_of_the_waste() -> None:
    rng = random.Random(1)
    policy = build_policy("young", mtbf=HOUR)
    training = Pretend(policy, stall=1.0, jitter=lambda: rng.uniform(0.5, 1.5))
    saves = training.run(40_000)[3:]
    mean = (saves[-1].at - saves[0].at) / (len(saves) - 1) - 1.0
    best = intervals.waste(intervals.young(1.0, HOUR), 1.0, HOUR)
    assert intervals.waste(mean, 1.0, HOUR) < 1.01 * best


@pytest.mark.parametrize(("every", "expected"), [("200 steps", 200), ("1 epoch", 300), ("2 epochs", 600)])
def test_every_saves_exactly_in_its_rhythm(every: str, expected: int) -> None:
    training = Pretend(build_policy(every=every), epoch_steps=300, stall=0.0, persist=1.0)
    saves = training.run(3001)
    assert [save.step for save in saves] == list(range(expected, 3001, expected))


def test_every_few_minutes_counts_from_the_last_save() -> None:
    training = Pretend(build_policy(every="50 s"), stall=3.0, persist=1.0)
    assert set(gaps(training.run(3000))) == {200}


def test_a_fixed_rhythm_resumes_on_the_same_steps() -> None:
    training = Pretend(build_policy(every="200 steps"), step=250)
    assert [save.step for save in training.run(400)] == [400, 600]


def test_the_budget_is_a_cap_and_never_a_target() -> None:
    cheap = Pretend(build_policy("auto", budget="3%", mtbf="1000 h"))
    cheap.run(40_000)
    assert cheap.overhead / (40_000 * 0.25) < 0.003
    dear = Pretend(build_policy("young", budget="3%", mtbf="2 min"))
    dear.run(40_000)
    assert 0.025 < dear.overhead / (40_000 * 0.25) <= 0.0301


def test_budget_counts_slowdown_as_well_as_stall() -> None:
    training = Pretend(build_policy("checkfreq", budget="3%"), stall=0.05, persist=5.0, slowdown=0.2)
    training.run(1000)
    training.overhead = 0.0
    training.run(20_000)
    assert training.overhead / (20_000 * 0.25) == pytest.approx(0.03, rel=0.06)


def test_max_loss_bounds_the_work_at_risk() -> None:
    training = Pretend(build_policy("auto", mtbf="10000 h", max_loss="2 min"))
    saves = training.run(10_000)
    for before, after in pairwise(saves):
        # What a failure just before the next commit would lose.
        assert after.at + 0.5 + 5.5 + 0.25 - (before.at + 0.5) <= 120.0 + 1e-6 + 0.5
    assert "max_loss" in saves[-1].reason
    assert "limit in force: max_loss" in training.policy.explain()


# Bounds.


def test_max_loss_wins_over_the_budget_and_says_so() -> None:
    here = Situation(rate=1e-6, cost=10.0, slowdown=0.0, persist=20.0, step=1.0)
    bounds = bounds_for("exact", here, budget=0.03, max_loss=100.0)
    assert bounds.interval == bounds.longest == 79.0
    assert bounds.conflict is not None
    assert "max_loss wins" in bounds.conflict


def test_physics_wins_over_max_loss_and_says_so() -> None:
    here = Situation(rate=1e-6, cost=0.1, slowdown=0.0, persist=120.0, step=1.0)
    bounds = bounds_for("exact", here, budget=0.03, max_loss=60.0)
    assert bounds.interval == 120.0
    assert bounds.conflict is not None
    assert "cannot be kept" in bounds.conflict


def test_a_budget_that_costs_more_than_it_saves_is_kept_and_said() -> None:
    here = Situation(rate=1 / 30, cost=0.42, slowdown=0.0, persist=0.5, step=0.05)
    capped = bounds_for("exact", here, budget=0.03)
    assert capped.limit == "budget"
    assert capped.interval == pytest.approx(0.42 / 0.03), "never above the budget"
    assert 'with budget="9%"' in (capped.conflict or "")
    assert bounds_for("exact", here, budget=0.09).conflict is None, "the one that it names is enough"
    rare = Situation(rate=1 / 86400, cost=0.42, slowdown=0.0, persist=0.5, step=0.05)
    assert bounds_for("exact", rare, budget=0.03).conflict is None
    assert bounds_for("budget", here, budget=0.03).conflict is None, "CheckFreq's rule is the budget"


def test_a_slow_persist_makes_the_interval_no_shorter_than_itself() -> None:
    here = Situation(rate=1 / (3.1 * HOUR), cost=0.5, slowdown=0.0, persist=120.0, step=1.0)
    assert bounds_for("young", here, budget=0.03).limit == "one persist at a time"
    assert bounds_for("young", here, budget=0.03).interval == 120.0
    # With 2 % interference back-to-back is already wrong.
    dearer = Situation(rate=1 / (3.1 * HOUR), cost=2.4, slowdown=2.4, persist=120.0, step=1.0)
    assert bounds_for("young", dearer, budget=0.05).interval == pytest.approx(231, abs=1)


# The first save, and what is unknown then.


def test_the_first_save_comes_early_without_a_profile() -> None:
    fast = Pretend(build_policy("auto"), step_seconds=0.01)
    assert fast.run(200)[0].step == FIRST_SAVE_STEPS
    slow = Pretend(build_policy("auto"), step_seconds=10.0)
    assert slow.run(200)[0].at - 1000.0 <= FIRST_SAVE_SECONDS + 2 * 10.0


def test_a_cold_first_save_does_not_put_off_the_second() -> None:
    training = Pretend(build_policy("checkfreq", budget="3%"), stall=3.0)
    training.run(FIRST_SAVE_STEPS)
    training.stall = 0.5
    second, third = training.run(600)[:2]
    assert (second.step - FIRST_SAVE_STEPS) * 0.25 < 0.35 * 3.0 / 0.03
    assert (third.step - second.step) * 0.25 == pytest.approx(0.5 / 0.03, abs=0.25)


def test_the_first_save_of_a_new_process_does_not_spoil_the_costs_of_its_predecessor() -> None:
    known = Profile(step_seconds=0.25, stall_seconds=0.5, cost_seconds=0.5, persist_seconds=5.0, saves=9)
    policy = build_policy("checkfreq", budget=0.05, profile=known)
    policy.restored(1000.0, 500, 12.0)
    training = Pretend(policy, stall=4.0, step=500)  # cold: it allocates
    training.run(70)
    assert len(training.saves) == 1
    training.stall = 0.5
    training.run(1000)
    assert set(gaps(training.saves)) <= {40, 41}


def test_a_resumed_run_with_a_known_profile_does_not_save_again_at_once() -> None:
    known = Profile(step_seconds=0.25, stall_seconds=2.0, cost_seconds=2.0, persist_seconds=5.0, saves=9)
    policy = build_policy("young", mtbf="3.1 h", profile=known)
    policy.restored(1000.0, 500, 12.0)
    training = Pretend(policy, stall=2.0, step=500)
    first = training.run(2000)[0]
    assert first.at - 1000.0 == pytest.approx(211.28, abs=0.5)


# Forced events.


def test_a_notice_forces_one_save_even_while_another_is_in_flight() -> None:
    policy = build_policy("auto")
    policy.decide(Observation(now=0.0, step=1, epoch=0))
    policy.save_started(0.5, 1)
    warned = policy.decide(Observation(now=1.0, step=2, epoch=0, save_in_flight=True, notice="SIGTERM"))
    assert warned.save
    assert warned.reason == "SIGTERM"
    policy.save_started(1.1, 2)
    again = policy.decide(Observation(now=2.0, step=3, epoch=0, save_in_flight=True, notice="SIGTERM"))
    assert not again.save


def test_the_last_save_before_a_deadline_fits_and_none_is_wasted_before_it() -> None:
    training = Pretend(build_policy("young", mtbf="3 h"), stall=2.0, deadline=1000.0 + 900.0)
    saves = training.run(seconds=899.0)
    last = saves[-1]
    assert "deadline" in last.reason
    assert last.at + 2.0 + 5.5 <= 1900.0
    assert last.at + 1.5 * 7.5 + 3 * 0.25 + 2.0 >= 1900.0
    parts = [after.at - before.at for before, after in pairwise(saves[1:])]
    assert max(parts) - min(parts) < 0.1 * max(parts)


def test_a_far_deadline_changes_nothing() -> None:
    with_end = Pretend(build_policy("young", mtbf="3 h"), deadline=1000.0 + 1e6)
    without = Pretend(build_policy("young", mtbf="3 h"))
    assert [s.step for s in with_end.run(10_000)] == [s.step for s in without.run(10_000)]


def test_an_epoch_end_pulls_a_save_forward_only_if_one_is_soon_due() -> None:
    training = Pretend(build_policy("young", mtbf="3.1 h"), stall=2.0, epoch_steps=500)
    saves = training.run(10_000)[3:]  # Young: 845 steps; an epoch end at 500 is past the half
    assert all(save.step % 500 == 0 for save in saves)
    never = Pretend(build_policy("young", mtbf="3.1 h"), stall=2.0, epoch_steps=100)
    assert len(never.run(10_000)) < 25


def test_epoch_ends_can_be_forced() -> None:
    training = Pretend(build_policy("auto", epoch_ends=True), epoch_steps=100, persist=0.1)
    assert {save.step for save in training.run(1000)} >= set(range(100, 1001, 100))


# Trouble.


def test_a_failed_save_puts_the_debt_back_and_is_retried_with_growing_pauses() -> None:
    training = Pretend(build_policy("young", mtbf="3 h"), persist=1.0)
    training.run(2000)
    committed = training.saves[-1]
    training.fails = True
    failing = training.run(3000)
    attempts = [save.at for save in failing]
    pauses = [b - a for a, b in pairwise(attempts)]
    assert len(attempts) >= 3
    assert pauses == sorted(pauses)
    assert pauses[0] < 30
    training.fails = False
    healed = training.run(3000)[0]
    assert healed.step > committed.step
    assert healed.at - attempts[-1] <= 303


def test_a_store_that_never_answers_cannot_be_asked_at_every_step() -> None:
    training = Pretend(build_policy("auto", max_loss="10 s"), persist=0.1, fails=True)
    assert len(training.run(10_000)) < 20


def test_a_long_pause_is_neither_a_slow_step_nor_starvation() -> None:
    training = Pretend(build_policy("young", mtbf="1 h"))
    training.run(1000)
    before = training.policy.profile.step_seconds
    training.now += 7200.0
    resumed = training.run(2)
    assert len(resumed) == 1  # one save for everything at risk, not one for every slot missed
    training.run(300)
    assert training.policy.profile.step_seconds == before


def test_asking_twice_at_a_boundary_and_validating_between_epochs_are_no_steps() -> None:
    policy = build_policy("auto")
    now = 0.0
    for step in range(1, 400):
        now += 0.01
        policy.decide(Observation(now=now, step=step, epoch=step // 10))
        if step % 10 == 0:
            policy.decide(Observation(now=now + 1e-5, step=step, epoch=step // 10, epoch_ended=True))
            policy.decide(Observation(now=now + 2e-5, step=step, epoch=step // 10))
            now += 0.9  # validation: ninety steps long, every ten steps
    steps = policy._costs.steps
    assert steps.typical == pytest.approx(0.01)
    assert steps.mean == pytest.approx(0.01)


def test_the_age_of_a_save_does_not_count_its_own_stall() -> None:
    policy = build_policy(every="100 s")
    policy.decide(Observation(now=0.0, step=1, epoch=0))
    policy.decide(Observation(now=100.0, step=2, epoch=0))
    policy.save_started(100.0, 2)  # told before the copy
    policy.save_committed(140.0, SaveCost(step=2, stall_seconds=30.0, persist_seconds=5.0, bytes=1))
    assert not policy.decide(Observation(now=229.0, step=3, epoch=0)).save
    assert policy.decide(Observation(now=230.0, step=4, epoch=0)).save


def test_steps_longer_than_the_interval_are_saved_one_by_one() -> None:
    training = Pretend(
        build_policy("young", mtbf="1 h", budget=0.5), step_seconds=120.0, stall=0.5, persist=5.0
    )
    saves = training.run(100)
    found = gaps(saves[2:])
    assert found.count(1) >= 80
    assert max(found) == 3  # now and then a look at two undisturbed steps


# Adapting, both ways.


def test_interference_raises_the_interval_until_within_budget_and_its_end_brings_it_back() -> None:
    budget = 0.03
    rng = random.Random(7)
    training = Pretend(
        build_policy("checkfreq", budget=budget), stall=0.05, persist=3.0, jitter=lambda: rng.gauss(1, 0.02)
    )
    training.run(4000)
    calm = gaps(training.saves)[-5:]
    training.slowdown, training.persist, training.stall = 0.4, 6.0, 0.15
    disturbed = training.run(4000)
    after_a_few = disturbed[5]
    start, spent = training.now, training.overhead
    training.run(4000)
    assert (training.overhead - spent) / (training.now - start) < 1.1 * budget
    assert after_a_few.step - disturbed[0].step < 3000
    assert min(gaps(training.saves)[-5:]) > 3 * max(calm)
    training.slowdown, training.persist, training.stall = 0.0, 3.0, 0.05
    training.run(8000)
    recovered = gaps(training.saves)[-5:]
    assert sum(recovered) / 5 == pytest.approx(sum(calm) / 5, rel=0.2)


def test_saves_back_to_back_do_not_hide_their_cost_behind_a_baseline_from_a_slow_day() -> None:
    training = Pretend(build_policy("checkfreq", budget=0.03), step_seconds=0.5, stall=0.01, persist=4.0)
    training.run(300)
    assert training.policy.explanation().limit == "one persist at a time"
    # The machine becomes twice as fast, and the persist takes a third of it away: measured against the old
    # steps, saving would seem to make training faster.
    training.step_seconds, training.slowdown = 0.25, 0.3
    training.run(4000)
    training.overhead = 0.0
    training.run(4000)
    assert training.overhead / (4000 * 0.25) < 0.035
    assert training.policy.profile.step_seconds == pytest.approx(0.25)


def test_noise_does_not_move_the_interval() -> None:
    rng = random.Random(3)
    training = Pretend(build_policy("young", mtbf="1 h"), stall=1.0)
    training.run(5000)
    intervals_seen = set()
    for _ in range(30):
        training.stall = rng.uniform(0.95, 1.05)
        training.run(250)
        intervals_seen.add(training.policy.explanation().interval_seconds)
    assert len(intervals_seen) == 1


def test_costs_are_measured_within_ten_percent_of_what_was_injected() -> None:
    rng = random.Random(5)
    training = Pretend(
        build_policy("young", mtbf="20 min"),
        stall=0.3,
        persist=8.0,
        slowdown=0.1,
        jitter=lambda: rng.choice([0.9, 1.0, 1.0, 1.1, 1.0, 1.0, 3.0]),  # a loader that hiccups
    )
    training.run(20_000)
    profile = training.policy.profile
    assert profile.step_seconds == pytest.approx(0.25, rel=0.1)
    assert profile.stall_seconds == pytest.approx(0.3, rel=0.1)
    assert profile.persist_seconds == pytest.approx(8.0, rel=0.1)
    assert profile.cost_seconds == pytest.approx(0.3 + 0.1 * 8.0, rel=0.3)
    assert profile.store_bytes_per_second == pytest.approx(10**9 / 8.0)


def test_steps_that_become_ten_times_longer_for_good_are_believed() -> None:
    training = Pretend(build_policy("auto"), step_seconds=0.2)
    training.run(500)
    training.step_seconds = 3.0
    training.run(300)
    assert training.policy.profile.step_seconds == pytest.approx(3.0)


# What is kept across restarts, and what is told.


def test_state_survives_json_and_saves_the_profile() -> None:
    training = Pretend(build_policy("young", mtbf="3.1 h"), stall=2.0)
    training.run(5000)
    kept = json.loads(json.dumps(training.policy.state()))
    policy = build_policy("young", mtbf="3.1 h")
    policy.restore_state(kept)
    assert policy.profile.cost_seconds == pytest.approx(2.0, rel=0.01)
    policy.restored(0.0, 5000, 3.0)
    resumed = Pretend(policy, stall=2.0, now=0.0, step=5000)
    assert resumed.run(2000)[0].at == pytest.approx(211.28, abs=1)


def test_costs_of_another_setting_are_measured_again() -> None:
    training = Pretend(build_policy("auto", setting="A100"), stall=2.0)
    training.run(500)
    kept = training.policy.state()
    same, other = build_policy("auto", setting="A100"), build_policy("auto", setting="H100")
    same.restore_state(kept)
    other.restore_state(kept)
    assert same.profile.stall_seconds == 2.0
    assert other.profile.stall_seconds is None
    assert other.state()["trained_seconds"] == pytest.approx(kept["trained_seconds"])


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"version": 99},
        {"version": 1, "profile": 7},
        {"version": 1, "profile": {"stall_seconds": "x", "saves": -1}},
        {"version": 1, "profile": {"cost_seconds": math.nan}, "levels": [], "trained_seconds": "long"},
    ],
)
def test_damaged_state_is_measured_again_instead_of_believed(damaged: dict[str, object]) -> None:
    policy = build_policy("auto")
    policy.restore_state(damaged)
    training = Pretend(policy)
    assert training.run(100)[0].step == FIRST_SAVE_STEPS


def test_explain_is_one_line_with_every_number_that_went_in() -> None:
    policy = build_policy("young", mtbf="3.1 h")
    training = Pretend(policy, stall=2.0)
    training.run(5000)
    line = policy.explain()
    assert "\n" not in line
    assert "next save in " in line
    assert "MTBF 3 h 6 min as given, save costs 2 s; limit in force: none" in line
    assert line.endswith("stall 0.95 % / rework 0.95 %")


def test_explanation_before_anything_is_known_says_when_the_first_save_comes() -> None:
    assert build_policy("auto").explain().startswith("first save within 30 s or 50 steps")


def test_a_commit_nobody_announced_is_taken_as_a_measurement() -> None:
    policy = build_policy("auto")
    policy.save_committed(1.0, SaveCost(step=3, stall_seconds=0.5, persist_seconds=2.0, bytes=10))
    policy.save_failed(2.0, 99)
    assert policy.state()["profile"]["stall_seconds"] == 0.5
