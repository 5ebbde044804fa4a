"""Steps that are taken where torch tells nobody, as by a captured graph on an accelerator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import holdfast
from holdfast.engine.reported import Reported
from holdfast.engine.torch_weight_watch import WeightWatch


class Replayed:
    """Updates weights through memory: no hook, no version, and gradients that stay where they are."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(3, 3)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for p in self.model.parameters():
            p.grad = torch.ones_like(p)

    def replay(self) -> None:
        for p in self.model.parameters():
            p.detach().numpy()[:] -= 0.1


@pytest.fixture(autouse=True)
def _weights_out_of_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an accelerator, whose memory is not worth waiting for."""
    monkeypatch.setattr(WeightWatch, "look", lambda self: False)


def test_a_loop_that_tells_of_its_steps_is_saved_as_it_was_at_the_boundary(tmp_path: Path) -> None:
    script = Replayed()
    expected = {}
    with holdfast.Run(
        tmp_path, model=script.model, opt=script.opt, every="3 steps", keep=99, copy="overlapped"
    ) as run:
        for _ in range(20):
            script.replay()
            expected[run.step + 1] = script.model.weight.detach().clone()
            run.end_step(stepped=True)
    steps = [c.step for c in holdfast.checkpoints(tmp_path)]
    assert len(steps) > 1
    for step in steps:
        assert torch.equal(holdfast.load_weights(tmp_path, step=step)["weight"], expected[step])


def test_a_loop_that_does_not_tell_is_told_how_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script = Replayed()
    with holdfast.Run(tmp_path, model=script.model, opt=script.opt, every="3 steps") as run:
        for _ in range(100):
            script.replay()
            run.end_step()
    assert caplog.text.count("end_step(stepped=True)") == 1


def test_reported_numbers_keep_no_graph_alive() -> None:
    weight = torch.ones(2, requires_grad=True)
    reported = Reported()
    reported.note(1, (weight * 2).sum(), {"accuracy": (weight * 3).sum(), "plain": 0.5})
    assert all(getattr(value, "grad_fn", None) is None for value in reported._numbers.values())
    assert reported.numbers(1) == {"loss": 4.0, "accuracy": 6.0, "plain": 0.5}
