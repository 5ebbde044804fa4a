"""Gradients that one of two optimizers is still gathering are not lost because the other has stepped."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast
from holdfast.engine.torch_boundary import Boundary
from holdfast.engine.torch_weight_watch import WeightWatch

EVERY = 4


class Pair:
    """`first` steps at every boundary, `second` uses the gradients of four."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4), "b": torch.nn.Linear(4, 4)})
        self.first = torch.optim.SGD(self.model["a"].parameters(), lr=0.1, momentum=0.9)
        self.second = torch.optim.SGD(self.model["b"].parameters(), lr=0.1, momentum=0.9)
        self.tracked: dict[str, Any] = {"model": self.model, "first": self.first, "second": self.second}

    def step(self, number: int) -> None:
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(number))
        self.model["b"](self.model["a"](x)).pow(2).mean().backward()
        self.first.step()
        self.first.zero_grad()
        if number % EVERY == EVERY - 1:
            self.second.step()
            self.second.zero_grad()


def train_for_a_while(path: Path, pair: Pair) -> None:
    with holdfast.Run(path, every="1 step", keep=99, **pair.tracked) as run:
        for number in range(14):
            pair.step(number)
            run.end_step()
        raise KeyboardInterrupt


def test_a_restart_loses_no_gradients_of_the_optimizer_that_did_not_step(tmp_path: Path) -> None:
    undisturbed, killed, resumed = Pair(), Pair(), Pair()
    for number in range(24):
        undisturbed.step(number)
    with pytest.raises(KeyboardInterrupt):
        train_for_a_while(tmp_path, killed)
    steps = [c.step for c in holdfast.checkpoints(tmp_path)]
    assert steps
    assert all(step % EVERY == 0 for step in steps), steps
    with holdfast.Run(tmp_path, every="1 step", **resumed.tracked) as run:
        for number in range(run.step, 24):
            resumed.step(number)
            run.end_step()
    for a, b in zip(undisturbed.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


class Loop:
    """Boundaries of a loop over two optimizers, without a run around it."""

    def __init__(self) -> None:
        self.one = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        self.two = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        self.boundary = Boundary([self.one, self.two], WeightWatch(list))

    def backward(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["params"][0].sum().backward()

    def passes(self, *stepped: torch.optim.Optimizer) -> bool:
        for optimizer in stepped:
            self.backward(optimizer)
            optimizer.step()
            self.boundary.optimizer_stepped(optimizer)
        self.boundary.passed()
        return self.boundary.is_clean


def test_gradients_that_a_step_has_used_and_nobody_cleared_keep_no_save_back() -> None:
    """A critic that is trained five times as often, with zero_grad in front of each backward pass."""
    loop = Loop()
    assert loop.passes(loop.one, loop.two)
    loop.passes(loop.one)  # Not known yet whether `two` sits out or gathers.
    assert loop.passes(loop.one, loop.two)
    for _ in range(3):
        loop.one.zero_grad()
        assert loop.passes(loop.one)
        assert loop.boundary.is_here


def test_what_is_added_to_used_gradients_keeps_a_save_back() -> None:
    loop = Loop()
    loop.passes(loop.one, loop.two)
    loop.passes(loop.one)
    loop.passes(loop.one, loop.two)
    loop.backward(loop.two)
    assert not loop.passes(loop.one)
    loop.two.zero_grad()
    assert loop.passes(loop.one)
    loop.backward(loop.two)
    assert not loop.passes(loop.one)
    assert loop.passes(loop.one, loop.two)


def test_gradients_that_are_never_used_do_not_keep_saves_back_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = Loop()
    loop.backward(loop.two)
    with caplog.at_level(logging.WARNING):
        clean = [loop.passes(loop.one) for _ in range(200)]
    assert not clean[0]
    assert clean[-1]
    assert caplog.text.count("has not stepped") == 1
