"""Overlapped or blocking: both are tried, the cheaper one is used, chance does not decide."""

from holdfast.engine.copy_meter import CopyMeter
from holdfast.staging.copy_choice import CopyChoice


def run(choice: CopyChoice, costs: dict[str, float], saves: int) -> list[str]:
    modes = []
    for _ in range(saves):
        mode = choice.next_mode()
        choice.learn(mode, costs[mode])
        modes.append(mode)
    return modes


def test_overlapping_is_tried_first() -> None:
    assert CopyChoice().next_mode() == "overlapped"


def test_both_are_measured_and_overlapping_stays_when_it_is_cheaper() -> None:
    modes = run(CopyChoice(), {"overlapped": 0.01, "blocking": 0.5}, 200)
    assert "blocking" in modes
    assert modes.count("blocking") < 20


def test_blocking_wins_when_overlapping_costs_more() -> None:
    modes = run(CopyChoice(), {"overlapped": 2.0, "blocking": 0.1}, 200)
    assert modes.count("blocking") > 150


def test_the_choice_is_taken_back_when_the_machine_changes() -> None:
    choice = CopyChoice()
    run(choice, {"overlapped": 2.0, "blocking": 0.1}, 100)
    later = run(choice, {"overlapped": 0.01, "blocking": 1.0}, 400)
    assert later[-50:].count("overlapped") > 40


def test_a_forced_mode_is_obeyed() -> None:
    choice = CopyChoice("blocking")
    assert run(choice, {"overlapped": 0.0, "blocking": 9.0}, 30) == ["blocking"] * 30
    assert "as asked" in choice.explain()


def test_the_meter_charges_the_step_beside_the_copy_and_not_the_others() -> None:
    choice = CopyChoice()
    learnt: list[tuple[str, float]] = []
    choice.learn = lambda mode, cost, *scatter: learnt.append((mode, cost))  # type: ignore[method-assign]
    meter = CopyMeter(choice)
    now = 0.0
    for _ in range(12):
        now += 1.0
        meter.boundary(now)
    meter.save_started(now, "overlapped")
    meter.boundary(now + 1.75)
    assert learnt == [("overlapped", 0.75)]
    meter.boundary(now + 2.75)
    meter.pause()
    meter.save_started(now + 3, "overlapped")
    meter.pause()
    meter.boundary(now + 500)
    assert len(learnt) == 1
