"""Frozen weights that stay the same are copied behind training; once they move, at the boundary again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast.errors import TornSnapshot
from holdfast.staging import torch_stager

WIDTH = 256


class Student(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.own = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.own(self.teacher(x)).pow(2).mean()


def build() -> tuple[Student, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Student()
    return model, torch.optim.SGD(model.own.parameters(), lr=0.1, momentum=0.9)


def step(model: Student, opt: torch.optim.Optimizer) -> None:
    model(torch.randn(2, WIDTH)).backward()
    opt.step()
    opt.zero_grad()


def copied_at_the_boundary(run: Any) -> set[str]:
    """The labels of large tensors that the next save copies in front of training."""
    copies = run._session.snapshots._layout.copies
    return {copies.places[i].label for i in copies.now.large}


def through_data(model: Student) -> None:
    model.teacher.weight.data.mul_(0.5)


def by_torch(model: Student) -> None:
    with torch.no_grad():
        model.teacher.weight[0, 0] += 1


def replaced(model: Student) -> None:
    model.teacher.weight = nn.Parameter(torch.randn(WIDTH, WIDTH), requires_grad=False)


def swapped(model: Student) -> None:
    model.teacher.weight.data = torch.randn(WIDTH, WIDTH)


CHANGES: list[Callable[[Student], None]] = [through_data, by_torch, replaced, swapped]


def test_frozen_weights_that_stay_the_same_are_not_copied_in_front_of_training(tmp_path: Path) -> None:
    model, opt = build()
    with holdfast.Run(tmp_path, model=model, opt=opt, every="1000 steps", copy="overlapped") as run:
        for i in range(6):
            step(model, opt)
            run.end_step()
            assert run.save_now().wait()
            assert bool(copied_at_the_boundary(run)) == (i < 3), i
    assert torch.equal(holdfast.load_weights(tmp_path)["teacher.weight"], model.teacher.weight)


@pytest.mark.parametrize("change", CHANGES)
def test_a_frozen_weight_that_moved_between_saves_is_in_the_next(
    tmp_path: Path, change: Callable[[Student], None]
) -> None:
    model, opt = build()
    expected = {}
    with holdfast.Run(tmp_path, model=model, opt=opt, every="1000 steps", copy="overlapped", keep=99) as run:
        for i in range(10):
            step(model, opt)
            if i == 6:
                assert not copied_at_the_boundary(run)
                change(model)
            run.end_step()
            expected[run.step] = model.teacher.weight.detach().clone()
            handle = run.save_now()
            assert handle.ended_within(30)
            assert handle.error is None or (isinstance(handle.error, TornSnapshot) and change is replaced)
    steps = [c.step for c in holdfast.checkpoints(tmp_path)]
    assert {1, 6, 8, 9, 10} <= set(steps)
    for at in steps:
        assert torch.equal(holdfast.load_weights(tmp_path, step=at)["teacher.weight"], expected[at]), at


@pytest.mark.parametrize("change", CHANGES)
def test_a_frozen_weight_that_moves_during_the_copy_tears_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Student], None]
) -> None:
    model, opt = build()
    real, moving = torch_stager.Snapshot.finish, False

    def finish(snapshot: Any) -> None:
        if moving:
            change(model)
        real(snapshot)

    monkeypatch.setattr(torch_stager.Snapshot, "finish", finish)
    expected = {}
    with holdfast.Run(tmp_path, model=model, opt=opt, every="1000 steps", copy="overlapped", keep=99) as run:
        for i in range(9):
            step(model, opt)
            run.end_step()
            expected[run.step] = model.teacher.weight.detach().clone()
            moving = i >= 5
            handle = run.save_now()
            assert handle.ended_within(30)
            moving = False
            if i == 5:
                assert isinstance(handle.error, TornSnapshot)
            if i == 8 and change is not replaced:
                assert handle.error is None
    for at in [c.step for c in holdfast.checkpoints(tmp_path) if c.step != 9]:
        assert torch.equal(holdfast.load_weights(tmp_path, step=at)["teacher.weight"], expected[at]), at


def by_lerp(average: nn.Module, model: nn.Module) -> None:
    with torch.no_grad():
        for mine, new in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(new, 0.1)


def by_data(average: nn.Module, model: nn.Module) -> None:
    for mine, new in zip(average.parameters(), model.parameters(), strict=True):
        mine.data.mul_(0.9).add_(new.data, alpha=0.1)


def by_torch_itself(average: nn.Module, model: nn.Module) -> None:
    average.update_parameters(model)  # type: ignore[operator]


Update = Callable[[nn.Module, nn.Module], None]


@pytest.mark.parametrize("update", [by_lerp, by_data, by_torch_itself])
def test_an_average_that_is_updated_behind_the_optimizer_is_not_copied_in_front_of_training(
    tmp_path: Path, update: Update
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    if update is by_torch_itself:
        average: nn.Module = torch.optim.swa_utils.AveragedModel(model)
    else:
        average = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    tracked = {"model": model, "average": average, "opt": opt}
    expected = {}
    with holdfast.Run(tmp_path, every="1000 steps", copy="overlapped", keep=99, **tracked) as run:
        for i in range(7):
            model(torch.randn(2, WIDTH)).pow(2).mean().backward()
            opt.step()
            opt.zero_grad()
            update(average, model)
            run.end_step()
            expected[run.step] = next(average.parameters()).detach().clone()
            assert run.save_now().wait()
            assert bool(copied_at_the_boundary(run)) == (i < 3), i
    name = next(name for name, _ in average.named_parameters())
    for at, weight in expected.items():
        stored = holdfast.load_weights(tmp_path, at, "average")
        assert torch.equal(stored[name], weight), at


@pytest.mark.parametrize("update", [by_lerp, by_data])
def test_an_average_that_the_forward_pass_moves_is_always_copied_at_the_boundary(
    tmp_path: Path, update: Update
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH)
    encoder = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    tracked = {"model": model, "encoder": encoder, "opt": opt}
    expected = {}
    with holdfast.Run(tmp_path, every="1000 steps", copy="overlapped", keep=99, **tracked) as run:
        for _ in range(7):
            update(encoder, model)
            (model(torch.randn(2, WIDTH)) - encoder(torch.randn(2, WIDTH))).pow(2).mean().backward()
            opt.step()
            opt.zero_grad()
            run.end_step()
            expected[run.step] = encoder.weight.detach().clone()
            handle = run.save_now()
            assert copied_at_the_boundary(run)
            # Not waited for: the next forward pass moves it while the save is under way.
    assert handle.error is None
    for checkpoint in holdfast.checkpoints(tmp_path):
        stored = holdfast.load_weights(tmp_path, checkpoint.step, "encoder")["weight"]
        assert torch.equal(stored, expected[checkpoint.step]), checkpoint.step
