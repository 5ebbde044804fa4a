"""State that was replaced before a boundary belongs to it: such a save is taken, and taken whole."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast


def trained(width: int = 8) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(width)
    model = torch.nn.Linear(width, width)
    opt = torch.optim.AdamW(model.parameters())
    return model, opt


def one_step(model: torch.nn.Module, opt: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 8)).sum().backward()
    opt.step()
    opt.zero_grad()


@pytest.mark.parametrize("what", ["optimizer", "model"])
def test_a_save_after_load_state_dict_holds_what_was_loaded(tmp_path: Path, what: str) -> None:
    model, opt = trained()
    with holdfast.Run(tmp_path, model=model, optimizer=opt, every="1000 steps") as run:
        for _ in range(3):
            one_step(model, opt)
            run.end_step()
            run.save_now().wait()
        if what == "optimizer":
            opt.load_state_dict(opt.state_dict())
            opt.state[model.weight]["exp_avg"].fill_(7.0)
        else:
            model.load_state_dict({k: v.clone() + 1 for k, v in model.state_dict().items()}, assign=True)
        one = run.save_now("after loading")
        assert one.wait()
        expected = {k: v.clone() for k, v in model.state_dict().items()}
    again, opt_again = trained()
    holdfast.restore(tmp_path, into={"model": again, "optimizer": opt_again})
    for name, value in expected.items():
        assert torch.equal(again.state_dict()[name], value)
    if what == "optimizer":
        assert (opt_again.state[again.weight]["exp_avg"] == 7.0).all()


def test_the_last_save_is_taken_even_if_a_moment_was_replaced(tmp_path: Path) -> None:
    model, opt = trained()
    with holdfast.Run(tmp_path, model=model, optimizer=opt, every="1000 steps") as run:
        for _ in range(3):
            one_step(model, opt)
            run.end_step()
            run.save_now().wait()
        one_step(model, opt)
        run.end_step()
        opt.state[model.bias]["exp_avg"] = torch.full_like(model.bias, 3.0)
    assert holdfast.checkpoints(tmp_path)[0].step == 4
    again, opt_again = trained()
    holdfast.restore(tmp_path, into={"model": again, "optimizer": opt_again})
    assert (opt_again.state[again.bias]["exp_avg"] == 3.0).all()


class Agent(torch.nn.Module):
    """Two networks of one form, as in reinforcement learning; only `q` is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.q = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
        self.target = copy.deepcopy(self.q)
        self.head = torch.nn.Linear(8, 8, bias=False)
        self.tail = torch.nn.Linear(8, 8, bias=False)
        self.tail.weight = self.head.weight
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tail(self.head(self.q(x))).pow(2).mean()


def agent() -> tuple[Agent, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Agent()
    parameters = [*model.q.parameters(), model.head.weight]
    return model, torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def swap_parameter_through_data(model: Agent, opt: torch.optim.Optimizer) -> None:
    model.q[0].weight.data = torch.randn(8, 8)


def replace_parameter(model: Agent, opt: torch.optim.Optimizer) -> None:
    """It is no longer the one that the optimizer steps, so that nothing fences it."""
    model.q[0].weight = torch.nn.Parameter(torch.randn(8, 8))


def untie(model: Agent, opt: torch.optim.Optimizer) -> None:
    model.tail.weight = torch.nn.Parameter(torch.randn(8, 8))


REPLACEMENTS: dict[str, Callable[[Agent, torch.optim.Optimizer], Any]] = {
    "a submodule": lambda model, opt: setattr(model, "target", copy.deepcopy(model.q)),
    "a trained submodule": lambda model, opt: setattr(model, "q", copy.deepcopy(model.q)),
    "a submodule of a submodule": lambda model, opt: model.target.__setitem__(0, torch.nn.Linear(8, 8)),
    "a layer in a list by another of the same form": lambda model, opt: model.q.__setitem__(
        1, torch.nn.BatchNorm1d(8)
    ),
    "a buffer": lambda model, opt: setattr(model, "seen", torch.randn(3)),
    "a parameter": replace_parameter,
    "a parameter's data": swap_parameter_through_data,
    "tied weights": untie,
}


@pytest.mark.parametrize("what", REPLACEMENTS)
def test_what_was_replaced_is_in_every_later_checkpoint(tmp_path: Path, what: str) -> None:
    model, opt = agent()

    def step() -> None:
        model(torch.randn(4, 8)).backward()
        opt.step()
        opt.zero_grad()

    expected: dict[int, dict[str, torch.Tensor]] = {}
    with holdfast.Run(
        tmp_path, model=model, optimizer=opt, every="1000 steps", keep=99, copy="overlapped"
    ) as run:
        for i in range(9):
            step()
            if i == 4:
                REPLACEMENTS[what](model, opt)
            for thing in model.target.parameters():
                # Moved unseen by version counters, as many a hand-written target network is.
                thing.data.add_(1)
            if i > 4:
                model.q[0].weight.data.add_(1)
            expected[i + 1] = {k: v.clone() for k, v in model.state_dict().items()}
            run.end_step()
            with contextlib.suppress(holdfast.errors.TornSnapshot):
                run.save_now().wait()
    steps = {c.step for c in holdfast.checkpoints(tmp_path)}
    assert {3, 4, 7, 8, 9} <= steps, "saving went on"
    for at in steps:
        weights = holdfast.load_weights(tmp_path, step=at)
        for name, value in expected[at].items():
            assert torch.equal(weights[name], value), (at, name)


def test_a_parameter_group_that_was_added_is_in_every_later_checkpoint(tmp_path: Path) -> None:
    def build() -> tuple[Agent, torch.optim.Optimizer]:
        model, _ = agent()
        return model, torch.optim.SGD(model.q[0].parameters(), lr=0.1, momentum=0.9)

    model, opt = build()
    with holdfast.Run(tmp_path, model=model, optimizer=opt, every="1000 steps", copy="overlapped") as run:
        for i in range(6):
            model(torch.randn(4, 8)).backward()
            opt.step()
            opt.zero_grad()
            if i == 3:
                opt.add_param_group({"params": [model.head.weight], "lr": 0.5})
            run.end_step()
            assert run.save_now().wait()
    again, opt_again = build()
    opt_again.add_param_group({"params": [again.head.weight], "lr": 0.5})
    holdfast.restore(tmp_path, into={"model": again, "optimizer": opt_again})
    assert torch.equal(
        opt_again.state[again.head.weight]["momentum_buffer"],
        opt.state[model.head.weight]["momentum_buffer"],
    )
