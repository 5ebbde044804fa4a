"""What a user says about when to save reaches the policy, and the journal says it back."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast.events import Progress, RunStarted
from holdfast.policy.explanation import Explanation
from holdfast.stores.journal import read_events
from holdfast.testing.fake_clock import FakeClock


def one_step(run: holdfast.Run, model: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
    loss = model(torch.ones(1, 2)).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    run.end_step(loss=loss)


def parts() -> tuple[nn.Linear, torch.optim.Optimizer]:
    model = nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def explained(path: Path, **settings: Any) -> Explanation:
    """After the first save, when there is something to explain."""
    model, optimizer = parts()
    clock = FakeClock()
    with holdfast.Run(path, clock=clock, model=model, optimizer=optimizer, **settings) as run:
        for _ in range(3):
            one_step(run, model, optimizer)
            clock.advance(1.0)
            run.save_now("to measure").wait()
        one_step(run, model, optimizer)
        return run.policy.explanation()


def test_coci_parameters_given_by_hand_are_the_ones_in_use(tmp_path: Path) -> None:
    given = holdfast.ConvergenceSettings(theta=(-0.5, 1.0), ts=2.0, rate=1e-4)
    by_hand = explained(tmp_path / "a", policy="convergence", convergence=given)
    assert by_hand.save_cost_seconds == 2.0
    assert by_hand.mtbf_seconds == pytest.approx(1e4)
    # The loss falls by half of itself each second: far more is at stake than a failure rate says.
    assert by_hand.worth_factor > 10
    assert explained(tmp_path / "b", policy="convergence").worth_factor == 1


def test_convergence_settings_without_that_policy_are_refused(tmp_path: Path) -> None:
    with pytest.raises(holdfast.SetupError, match="mean nothing"):
        holdfast.Run(tmp_path / "run", convergence=holdfast.ConvergenceSettings(), model=parts()[0])


def test_a_machine_said_to_be_spot_is_expected_to_be_lost_sooner(tmp_path: Path) -> None:
    plain, spot = explained(tmp_path / "a", spot="off"), explained(tmp_path / "b", spot="aws")
    assert "spot" not in plain.expects
    assert spot.expects.startswith("spot machines of aws, no failure")


def test_the_journal_has_the_settings_and_what_came_of_them(tmp_path: Path) -> None:
    model, optimizer = parts()
    clock = FakeClock()
    with holdfast.Run(
        tmp_path / "run", budget="2%", max_loss="10 min", clock=clock, model=model, optimizer=optimizer
    ) as run:
        for _ in range(4):
            one_step(run, model, optimizer)
            clock.advance(6.0)
    events = read_events(tmp_path / "run")
    started = next(e for e in events if isinstance(e, RunStarted))
    assert started.policy == "policy='auto', budget='2%', max_loss='10 min'"
    said = [e.policy for e in events if isinstance(e, Progress)]
    assert said
    assert all("save" in line for line in said)
