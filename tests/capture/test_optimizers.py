"""Every optimizer, scheduler and scaler continues bit for bit from its restored state."""

import copy
import inspect
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from round_trip import Holder, images_of, same_bits, states_of
from torch import nn
from torch.optim import lr_scheduler

import holdfast
from holdfast.capture.torch_optimizer import TrackedOptimizer
from holdfast.capture.torch_registry import restore_all, track
from holdfast.errors import IncompatibleState

Optimizer = torch.optim.Optimizer
EVERY_OPTIMIZER = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, Optimizer) and kind is not Optimizer
)


def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "SparseAdam":
        return nn.Embedding(11, 4, sparse=True)
    if name == "Muon":  # matrices only
        return nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh(), nn.Linear(8, 2, bias=False))
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    if isinstance(model, nn.Embedding):
        return model(torch.randint(0, 11, (5,), generator=generator)).pow(2).sum()
    return model(torch.randn(5, 4, generator=generator)).pow(2).mean()


def train(model: nn.Module, optimizer: Optimizer, steps: range) -> list[float]:
    losses = []
    for step in steps:

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        losses.append(float(loss.detach()))
    return losses


def carry_over(source: dict[str, Any], target: dict[str, Any]) -> None:
    restore_all(track(target), states_of(*images_of(track(source))))


def continues_exactly(make: Callable[[nn.Module], Optimizer], name: str) -> None:
    model = model_of(name)
    optimizer = make(model)
    train(model, optimizer, range(3))
    other = model_of(name)
    other_optimizer = make(other)
    carry_over({"model": model, "opt": optimizer}, {"model": other, "opt": other_optimizer})
    assert same_bits(optimizer.state_dict(), other_optimizer.state_dict())
    assert train(model, optimizer, range(3, 6)) == train(other, other_optimizer, range(3, 6))
    assert same_bits(dict(model.state_dict()), dict(other.state_dict()))
    assert same_bits(optimizer.state_dict(), other_optimizer.state_dict())


@pytest.mark.parametrize("name", EVERY_OPTIMIZER)
def test_every_optimizer_continues_exactly(name: str) -> None:
    kind = getattr(torch.optim, name)
    settings = {"SGD": {"momentum": 0.9, "nesterov": True}, "LBFGS": {"history_size": 3, "max_iter": 4}}
    continues_exactly(lambda m: kind(m.parameters(), lr=0.05, **settings.get(name, {})), name)


@pytest.mark.parametrize(
    "options",
    [
        {"foreach": True}, {"fused": True}, {"amsgrad": True}, {"lr": torch.tensor(0.05)}, {"maximize": True},
    ],
    ids=str,
)  # fmt: skip
def test_adamw_flavours_continue_exactly(options: dict[str, Any]) -> None:
    continues_exactly(lambda m: torch.optim.AdamW(m.parameters(), **{"lr": 0.05, **options}), "AdamW")


@pytest.mark.parametrize("name", ["Adam", "SGD", "LBFGS"])
def test_an_optimizer_that_has_not_stepped_yet_is_saved_without_a_hidden_step(name: str) -> None:
    model = model_of(name)
    settings = {"momentum": 0.9} if name == "SGD" else {}
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **settings)
    steps: list[int] = []
    optimizer.register_step_pre_hook(lambda *a: steps.append(1))
    weights = copy.deepcopy(dict(model.state_dict()))
    random_before = torch.get_rng_state()
    states = states_of(*images_of(track({"opt": optimizer, "model": model})))
    fresh_model = model_of(name)
    fresh = getattr(torch.optim, name)(fresh_model.parameters(), lr=0.1, **settings)
    fresh.register_step_pre_hook(lambda *a: steps.append(1))
    random_here = torch.get_rng_state()
    restore_all(track({"opt": fresh, "model": fresh_model}), states)
    assert steps == []
    assert same_bits(weights, dict(model.state_dict()))
    assert len(fresh.state) == len(optimizer.state)
    assert torch.equal(random_here, torch.get_rng_state())
    assert random_before.shape == random_here.shape


@pytest.mark.parametrize(
    ("params", "moments"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16), (torch.float32, torch.int8)],
    ids=str,
)
def test_state_keeps_its_own_dtype(params: torch.dtype, moments: torch.dtype) -> None:
    """Optimizer.load_state_dict casts all state to the parameter's dtype; that would lose bits."""

    def build() -> tuple[nn.Module, Optimizer]:
        model = nn.Linear(3, 3).to(params)
        return model, torch.optim.Adam(model.parameters())

    model, optimizer = build()
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(7.0, dtype=torch.float64),
            "exp_avg": (torch.randn(parameter.shape) * 50).to(moments),
            "history": [torch.randn(3, dtype=torch.float64), (torch.tensor([2**31 + 1]), "word")],
        }
    other, other_optimizer = build()
    carry_over({"model": model, "opt": optimizer}, {"model": other, "opt": other_optimizer})
    assert same_bits(optimizer.state_dict()["state"], other_optimizer.state_dict()["state"])


def test_parameters_in_another_order_are_refused_and_nothing_is_touched() -> None:
    def build(*, turned: bool) -> tuple[nn.Module, Optimizer]:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        layers = list(model)[::-1] if turned else list(model)
        return model, torch.optim.Adam([p for layer in layers for p in layer.parameters()])

    model, optimizer = build(turned=False)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    other, other_optimizer = build(turned=True)
    before = copy.deepcopy(dict(other.state_dict()))
    with pytest.raises(
        IncompatibleState, match=r"'model.0.weight#0' in the checkpoint where 'model.1.weight#0'"
    ):
        carry_over({"model": model, "opt": optimizer}, {"model": other, "opt": other_optimizer})
    assert same_bits(before, dict(other.state_dict()))
    assert not other_optimizer.state


def test_parameters_of_another_shape_are_refused_even_without_their_model() -> None:
    first = torch.optim.Adam([nn.Parameter(torch.ones(2))])
    second = torch.optim.Adam([nn.Parameter(torch.ones(3))])
    first.param_groups[0]["params"][0].grad = torch.ones(2)
    first.step()
    with pytest.raises(IncompatibleState, match=r"does not fit 'opt'"):
        carry_over({"opt": first}, {"opt": second})
    assert not second.state


def test_another_number_of_groups_or_parameters_is_refused() -> None:
    def optimizer(*sizes: int) -> Optimizer:
        return torch.optim.SGD(
            [{"params": [nn.Parameter(torch.ones(1)) for _ in range(n)]} for n in sizes], lr=1
        )

    with pytest.raises(IncompatibleState, match=r"1 parameter groups in the checkpoint, 2 here"):
        carry_over({"opt": optimizer(2)}, {"opt": optimizer(1, 1)})
    with pytest.raises(IncompatibleState, match=r"group 0 has 2 parameters in the checkpoint, 3 here"):
        carry_over({"opt": optimizer(2)}, {"opt": optimizer(3)})


def test_another_kind_of_optimizer_is_refused_unless_it_finds_all_its_settings() -> None:
    weights = [nn.Parameter(torch.ones(2))]

    class Mine(torch.optim.AdamW):
        pass

    adamw = torch.optim.AdamW(weights)
    with pytest.raises(IncompatibleState, match=r"saved from torch.optim.adamw.AdamW, and here is .*\.SGD"):
        carry_over({"opt": adamw}, {"opt": torch.optim.SGD(weights)})
    carry_over({"opt": adamw}, {"opt": Mine(weights)})
    old = torch.optim.AdamW(weights)
    for group in old.param_groups:
        del group["decoupled_weight_decay"]  # as saved by a torch that did not have it
    carry_over({"opt": old}, {"opt": adamw})


def test_settings_of_every_group_survive() -> None:
    """B1 of the predecessor: lr, momentum, betas and the parameter list were lost on the way."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    groups = [
        {"params": model[0].parameters(), "lr": 0.3},
        {"params": model[1].parameters(), "betas": (0.5, 0.6)},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.25)
    optimizer.param_groups[0]["note"] = {"frozen": None, "sizes": [1, 2]}
    fresh_model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    fresh = torch.optim.AdamW([{"params": layer.parameters()} for layer in fresh_model], lr=9.0)
    carry_over({"model": model, "opt": optimizer}, {"model": fresh_model, "opt": fresh})
    assert same_bits(optimizer.state_dict(), fresh.state_dict())


SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda e: 0.9**e),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda e: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4, 4]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=7),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 9, 2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 7),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.2, 3),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=20),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 3), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 3), lr_scheduler.ExponentialLR(o, 0.9)], o
    ),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.01, 5),
}


def test_every_scheduler_of_torch_is_tried() -> None:
    known = {
        name
        for name, kind in vars(lr_scheduler).items()
        if inspect.isclass(kind) and issubclass(kind, lr_scheduler.LRScheduler) and not name.startswith("_")
    }
    assert known - {"LRScheduler"} <= set(SCHEDULERS)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_continues_exactly(name: str) -> None:
    def build() -> tuple[nn.Module, Optimizer, Any]:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        return model, optimizer, SCHEDULERS[name](optimizer)

    def go(optimizer: Optimizer, scheduler: Any, steps: int) -> list[float]:
        rates = []
        for step in range(steps):
            optimizer.step()
            scheduler.step(1.0 + step) if name == "ReduceLROnPlateau" else scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    with warnings.catch_warnings():
        # Several of torch's own schedulers warn of their own calls.
        warnings.simplefilter("ignore")
        model, optimizer, scheduler = build()
        go(optimizer, scheduler, 5)
        fresh_model, fresh_optimizer, fresh = build()
        carry_over(
            {"model": model, "optimizer": optimizer, "scheduler": scheduler},
            {"scheduler": fresh, "optimizer": fresh_optimizer, "model": fresh_model},
        )
        assert fresh_optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
        assert go(fresh_optimizer, fresh, 6) == go(optimizer, scheduler, 6)


def test_grad_scaler_survives_with_its_growth() -> None:
    def build() -> tuple[nn.Module, Optimizer, Any]:
        model = nn.Linear(2, 2)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
        return model, torch.optim.SGD(model.parameters(), lr=0.1), scaler

    model, optimizer, scaler = build()
    for factor in (1.0, float("inf"), 1.0, 1.0):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 2)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    fresh_model, fresh_optimizer, fresh = build()
    carry_over(
        {"m": model, "o": optimizer, "s": scaler}, {"m": fresh_model, "o": fresh_optimizer, "s": fresh}
    )
    assert fresh.state_dict() == scaler.state_dict()
    assert fresh.get_scale() == scaler.get_scale() != 8.0


def test_objects_come_back_models_first_optimizers_next() -> None:
    order = []

    class Watcher(Holder):
        def load_state_dict(self, state: Any) -> None:
            order.append((float(model.weight.detach()), optimizer.param_groups[0]["lr"]))

    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.75)
    with torch.no_grad():
        model.weight.fill_(42.0)
    images, values = images_of(track({"watcher": Watcher({}), "o": optimizer, "m": model}))
    with torch.no_grad():
        model.weight.fill_(0.0)
    optimizer.param_groups[0]["lr"] = 0.0
    restore_all(track({"watcher": Watcher({}), "o": optimizer, "m": model}), states_of(images, values))
    assert order == [(42.0, 0.75)]


def test_the_memory_of_replaced_moments_is_given_back_behind_a_restore() -> None:
    parameter = torch.nn.Parameter(torch.zeros(10 << 20))
    optimizer = torch.optim.AdamW([parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    tracked = TrackedOptimizer("optimizer", optimizer)
    saved = tracked.take()
    saved["state_dict"]["state"][0] = {k: v.clone() for k, v in saved["state_dict"]["state"][0].items()}
    gone = threading.Event()
    weakref.finalize(optimizer.state[parameter]["exp_avg"], gone.set)
    tracked.apply(saved)
    assert gone.wait(30)
    restored = saved["state_dict"]["state"][0]["exp_avg"]
    assert optimizer.state[parameter]["exp_avg"].data_ptr() == restored.data_ptr()


@pytest.mark.parametrize("scheduled", [False, True], ids=["constant", "scheduled"])
def test_settings_that_the_checkpoint_overrules_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, scheduled: bool
) -> None:
    def build(lr: float, decay: float) -> dict[str, Any]:
        model = torch.nn.Linear(2, 2)
        opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=decay)
        tracked: dict[str, Any] = {"model": model, "opt": opt}
        if scheduled:
            tracked["scheduler"] = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
        return tracked

    def train(tracked: dict[str, Any], steps: int) -> None:
        with holdfast.Run(tmp_path, every="1000 steps", **tracked) as run:
            for _ in range(steps):
                tracked["model"](torch.ones(1, 2)).sum().backward()
                tracked["opt"].step()
                tracked["opt"].zero_grad()
                if scheduled:
                    tracked["scheduler"].step()
                run.end_step()

    train(build(0.1, 0.0), 3)
    train(build(0.1, 0.0), 1)
    assert "goes on as it was saved" not in caplog.text, "a schedule is no change"
    train(build(0.2, 0.5), 1)
    assert "lr is 0.1 (0.2 in the script)" in caplog.text
    assert "weight_decay is 0.0 (0.5 in the script)" in caplog.text
    assert "betas" not in caplog.text
