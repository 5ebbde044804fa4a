"""A history that grows with every step does not lay out everything anew at every save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast
from holdfast.cli.main import main
from holdfast.engine import torch_snapshots


class History:
    def __init__(self) -> None:
        self.losses: list[Any] = []

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses), "seen": {i: str(i) for i in range(len(self.losses))}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["seen"] == {i: str(i) for i in range(len(state["losses"]))}
        self.losses = list(state["losses"])


def parts() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return {"model": model, "opt": opt, "history": History()}


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made: list[int] = []
    real = torch_snapshots.plan_state

    def plan_state(*args: Any) -> Any:
        made.append(1)
        return real(*args)

    monkeypatch.setattr(torch_snapshots, "plan_state", plan_state)
    return made


@pytest.mark.parametrize("copy", ["overlapped", "blocking"])
def test_what_grows_is_planned_twice_and_not_at_every_save(
    tmp_path: Path, plans: list[int], copy: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tracked = parts()
    history = tracked["history"]
    with holdfast.Run(tmp_path, every="1000 steps", copy=copy, keep=99, **tracked) as run:
        for i in range(12):
            tracked["model"](torch.ones(1, 4)).sum().backward()
            tracked["opt"].step()
            tracked["opt"].zero_grad()
            history.losses.append((i, float(i) / 3, None))
            run.extras.setdefault("seen", {})[f"batch {i}"] = {i}
            run.end_step()
            assert run.save_now().wait()
            # Changed behind the boundary: not in that checkpoint.
            history.losses[-1] = (i, -1.0, None)
            run.extras["seen"]["late"] = i
    # One more than these where the optimizer's state appears after the first.
    assert len(plans) <= 3
    for step in (1, 2, 7, 12):
        again = parts()
        holdfast.restore(tmp_path, {"history": again["history"]}, step=step)
        changed = [(i, -1.0, None) for i in range(step - 1)]
        assert again["history"].losses == [*changed, (step - 1, float(step - 1) / 3, None)]
    with holdfast.Run(tmp_path, every="1000 steps", **parts()) as run:
        assert run.step == 12
        assert run.extras["seen"]["batch 11"] == {11}
    assert main(["diff", str(tmp_path), "7", "12"]) in (0, 1)
    assert "history" in capsys.readouterr().out


def test_an_object_that_gets_tensors_later_is_still_saved(tmp_path: Path) -> None:
    tracked = parts()
    history = tracked["history"]
    with holdfast.Run(tmp_path, every="1000 steps", keep=99, **tracked) as run:
        for i in range(6):
            history.losses.append(i if i < 4 else torch.full((2,), float(i)))
            run.end_step()
            run.save_now().wait()
    again = parts()
    holdfast.restore(tmp_path, {"history": again["history"]})
    assert again["history"].losses[:4] == [0, 1, 2, 3]
    assert again["history"].losses[5].tolist() == [5.0, 5.0]
