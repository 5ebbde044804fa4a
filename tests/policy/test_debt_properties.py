"""Whatever happens to a run, the engine keeps its promises: random lives, every call in random order."""

from __future__ import annotations

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.policy.build import build_policy
from holdfast.policy.observation import Observation, SaveCost

STEPS = st.lists(
    st.tuples(
        st.floats(1e-4, 50.0),  # length of the step
        st.sampled_from(["nothing", "commit", "fail", "epoch", "ask again", "user save", "late"]),
        st.floats(0.0, 20.0),  # stall
        st.floats(0.0, 200.0),  # persist
    ),
    min_size=5,
    max_size=120,
)
POLICIES = st.sampled_from(
    [
        {"policy": "auto"},
        {"policy": "auto", "mtbf": 60.0, "max_loss": 30.0},
        {"policy": "checkfreq", "budget": 0.01},
        {"policy": "daly", "mtbf": 5.0},
        {"policy": "availability", "mtbf": 1e9},
        {"policy": "convergence"},
        {"every": "3 steps"},
        {"every": "7 s", "max_loss": 20.0},
        {"every": "1 epoch"},
    ]
)


@settings(max_examples=150, deadline=None)
@given(words=POLICIES, steps=STEPS, deadline=st.none() | st.floats(0.0, 3000.0))
def test_every_life_keeps_the_promises(
    words: dict[str, object], steps: list[tuple[float, str, float, float]], deadline: float | None
) -> None:
    policy = build_policy(**words)  # type: ignore[arg-type]
    now, in_flight = 100.0, []
    for step, (length, happens, stall, persist) in enumerate(steps, start=1):
        now += length
        if in_flight and happens == "commit":
            policy.save_committed(now, SaveCost(in_flight.pop(0), stall, persist, 1))
        elif in_flight and happens == "fail":
            policy.save_failed(now, in_flight.pop(0))
        seen = Observation(
            now=now,
            step=step,
            epoch=0,
            epoch_ended=happens == "epoch",
            save_in_flight=bool(in_flight),
            deadline=None if deadline is None else 100.0 + deadline,
            loss=lambda at=now: math.exp(-at / 100),
        )
        decision = policy.decide(seen)
        assert decision.reason
        if decision.save and seen.save_in_flight:
            assert "deadline" in decision.reason
        if happens == "ask again":
            policy.decide(seen)
        if decision.save or happens == "user save":
            now += stall
            policy.save_started(now, step)
            in_flight.append(step)
        told = policy.explanation()
        assert told.next_save_in is None or not math.isnan(told.next_save_in)
        assert policy.explain()
    json.dumps(policy.state())


@settings(max_examples=60, deadline=None)
@given(
    length=st.floats(0.001, 30.0),
    stall=st.floats(0.0, 10.0),
    mtbf=st.floats(10.0, 1e8),
    name=st.sampled_from(["auto", "young", "daly", "availability", "checkfreq", "convergence"]),
)
def test_nothing_starves(length: float, stall: float, mtbf: float, name: str) -> None:
    """However long the steps and however dear the saves: the next one always comes, and in time."""
    policy = build_policy(name, mtbf=None if name == "checkfreq" else mtbf, max_loss="1 h", budget=0.05)
    now, since, step = 0.0, 0.0, 0
    for _ in range(4):
        for _ in range(10**6):
            now += max(length, (now - since) / 40)  # long steps later on, so that this ends
            step += 1
            if policy.decide(Observation(now=now, step=step, epoch=0)).save:
                break
            assert now - since < 3600.0
        policy.save_started(now, step)
        policy.save_committed(now + stall, SaveCost(step, stall, 1.0, 1))
        now += stall
        since = now


def test_a_deadline_that_jitters_is_still_the_same_deadline() -> None:
    policy = build_policy("young", mtbf="1 h")
    saves = 0
    for step in range(1, 2000):
        seen = Observation(now=float(step), step=step, epoch=0, deadline=2100.0 + 0.1 * (step % 3))
        if policy.decide(seen).save:
            saves += 1
            policy.save_started(float(step), step)
            policy.save_committed(float(step), SaveCost(step, 1.0, 1.0, 1))
    assert 10 < saves < 40
