"""Resuming is bit-exact for every kind of training that we know of.

Scalers that overflow, averages, accumulation, closures, half precision, channels_last, complex weights,
tensor learning rates, a user's own optimizer.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast.testing.torch_loops import exact

STEPS, STOP = 9, 4


class Training:
    """Objects, and one step of theirs on data that is a function of the step's number."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = self.build_model()
        self.opt = self.build_optimizer()
        self.tracked: dict[str, Any] = {"model": self.model, "opt": self.opt}

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 1))

    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def data(self, number: int) -> torch.Tensor:
        return torch.randn(6, 4, generator=torch.Generator().manual_seed(number))

    def loss(self, number: int) -> torch.Tensor:
        return self.model(self.data(number)).pow(2).mean()

    def step(self, number: int) -> torch.Tensor:
        self.opt.zero_grad()
        loss = self.loss(number)
        loss.backward()
        self.opt.step()
        return loss.detach()


class Fused(Training):
    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=torch.tensor(0.01), fused=True, amsgrad=True)


class Foreach(Training):
    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, foreach=True)


class Closure(Training):
    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(self.model.parameters(), lr=0.1, max_iter=3, history_size=3)

    def step(self, number: int) -> torch.Tensor:
        def closure() -> torch.Tensor:
            self.opt.zero_grad()
            loss = self.loss(number)
            loss.backward()
            return loss

        return self.opt.step(closure).detach()  # type: ignore[no-any-return, union-attr]


class Overflowing(Training):
    """A scaler that skips steps and changes its scale."""

    def __init__(self) -> None:
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)
        self.tracked["scaler"] = self.scaler

    def step(self, number: int) -> torch.Tensor:
        self.opt.zero_grad()
        loss = self.loss(number)
        self.scaler.scale(loss * (float("inf") if number in (2, 5) else 1.0)).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.detach() * self.scaler.get_scale()


class Averaged(Training):
    """An average of the weights that takes part in the loss, and a scheduler."""

    def __init__(self) -> None:
        super().__init__()
        self.average = torch.optim.swa_utils.AveragedModel(
            self.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.7)
        )
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.opt, 0.05, total_steps=STEPS + 1)
        self.tracked |= {"average": self.average, "scheduler": self.scheduler}

    def step(self, number: int) -> torch.Tensor:
        loss = super().step(number)
        self.average.update_parameters(self.model)
        self.scheduler.step()
        with torch.no_grad():
            return loss + self.average.module[0](self.data(number)).sum()


class Accumulating(Training):
    def step(self, number: int) -> torch.Tensor:
        losses = []
        for part in range(3):
            loss = self.loss(10 * number + part) / 3
            loss.backward()
            losses.append(loss.detach())
        self.opt.step()
        self.opt.zero_grad(set_to_none=False)
        return torch.stack(losses).sum()


class FloatMoments(torch.optim.Optimizer):
    """A user's own optimizer: float32 moments whatever the weights are, which torch's loading would round."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.3})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                moment = self.state[parameter].setdefault("moment", torch.zeros(parameter.shape))
                moment.mul_(0.9).add_(parameter.grad.float(), alpha=0.1)
                parameter.sub_(group["lr"] * moment)


class HalfPrecision(Training):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(torch.bfloat16)

    def build_optimizer(self) -> torch.optim.Optimizer:
        return FloatMoments(self.model.parameters())

    def data(self, number: int) -> torch.Tensor:
        return super().data(number).to(torch.bfloat16)


class ChannelsLast(Training):
    def build_model(self) -> nn.Module:
        model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 2, 3))
        return model.to(memory_format=torch.channels_last)

    def data(self, number: int) -> torch.Tensor:
        image = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(number))
        return image.to(memory_format=torch.channels_last)


class Complex(Training):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4, dtype=torch.complex64), nn.Linear(4, 1, dtype=torch.complex64))

    def loss(self, number: int) -> torch.Tensor:
        return self.model(self.data(number).to(torch.complex64)).abs().pow(2).mean()


class TwoGroups(Training):
    """Groups with their own settings, one of them frozen half way."""

    def build_optimizer(self) -> torch.optim.Optimizer:
        first, *rest = list(self.model.parameters())
        return torch.optim.Adam([{"params": [first], "lr": 0.05}, {"params": rest, "betas": (0.5, 0.9)}])

    def step(self, number: int) -> torch.Tensor:
        self.opt.param_groups[0]["lr"] *= 0.9
        return super().step(number)


KINDS: list[Callable[[], Training]] = [
    Training, Fused, Foreach, Closure, Overflowing, Averaged, Accumulating, HalfPrecision, ChannelsLast,
    Complex, TwoGroups,
]  # fmt: skip


def states(training: Training) -> dict[str, Any]:
    return {name: thing.state_dict() for name, thing in training.tracked.items()}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        raw = [t.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
        return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(*raw)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.parametrize("copy", ["overlapped", "blocking"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_a_resumed_run_is_the_uninterrupted_run(
    tmp_path: Path, kind: Callable[[], Training], copy: Any
) -> None:
    whole = kind()
    expected = [exact(whole.step(number)) for number in range(STEPS)]
    randomness = torch.get_rng_state()
    losses = []
    for upto in (STOP, STEPS):
        part = kind()
        with holdfast.Run(tmp_path, every="1 step", copy=copy, **part.tracked) as run:
            for number in run.steps(upto):
                losses.append(exact(part.step(number)))
    assert losses == expected
    assert same(states(part), states(whole))
    assert torch.equal(torch.get_rng_state(), randomness)
