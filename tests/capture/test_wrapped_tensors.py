"""A tensor that wraps others (DTensor, a quantized state): torch counts a change where it was asked for, at
the wrapper or at the part. A snapshot that was overtaken by either is thrown away, never committed."""

import enum
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import holdfast
from holdfast.errors import TornSnapshot
from holdfast.staging import torch_stager


@pytest.fixture
def _alone_in_a_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sharded_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return model


def add_to_the_whole(parameter: Any) -> None:
    parameter.add_(1)


def add_to_the_part(parameter: Any) -> None:
    parameter.to_local().add_(1)


@pytest.mark.usefixtures("_alone_in_a_group")
@pytest.mark.parametrize("saves_before", [0, 2], ids=["first save", "third save"])
@pytest.mark.parametrize("change", [add_to_the_whole, add_to_the_part])
@pytest.mark.parametrize("what", ["weight", "moment"])
def test_a_sharded_tensor_changed_during_the_copy_tears_the_snapshot(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    change: Callable[[Any], None],
    saves_before: int,
) -> None:
    model = sharded_model()
    opt = torch.optim.AdamW(model.parameters())
    real = torch_stager.Snapshot.finish
    changing = False

    def finish(snapshot: Any) -> None:
        if changing:
            # The last bytes of the last layer: no sample of a few bytes lies here.
            target = model[1].bias if what == "weight" else opt.state[model[1].bias]["exp_avg_sq"]
            with torch.no_grad():
                change(target)
        real(snapshot)

    monkeypatch.setattr(torch_stager.Snapshot, "finish", finish)
    monkeypatch.setattr(torch_stager.Snapshot, "_require_as_noted", lambda *_: None)
    with holdfast.Run(tmp_path, model=model, optimizer=opt, every="1000 steps", copy="overlapped") as run:
        for _ in range(saves_before + 1):
            model(torch.ones(2, 8)).sum().backward()
            opt.step()
            opt.zero_grad()
            run.end_step()
            if run.step <= saves_before:
                run.save_now().wait()
        changing = True
        handle = run.save_now()
        assert handle.ended_within(30)
        changing = False
        assert isinstance(handle.error, TornSnapshot)


class Eighth(torch.Tensor):
    """Values of 8 bits with one scale, as 8-bit optimizers keep their state."""

    tensor_attrs = ("codes", "scale")

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor, shape: Any, *, signed: bool) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32, device=codes.device)

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor, shape: Any, *, signed: bool) -> None:
        self.codes, self.scale, self.signed = codes, scale, signed

    def __tensor_flatten__(self) -> Any:
        return self.tensor_attrs, [self.signed, self.shape, Rounding.NEAREST]

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, context: Any, outer_size: Any, outer_stride: Any) -> Any:
        assert context[2] is Rounding.NEAREST
        return cls(parts["codes"], parts["scale"], context[1], signed=context[0])

    def read(self) -> torch.Tensor:
        return self.codes.float() * self.scale

    @classmethod
    def of(cls, values: torch.Tensor) -> Any:
        scale = (values.abs().max() / 127).clamp(min=1e-9).reshape(1)
        return cls((values / scale).round().to(torch.int8), scale, values.shape, signed=True)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            target, source = args
            new = source if isinstance(source, Eighth) else Eighth.of(source)
            target.codes.copy_(new.codes)
            target.scale.copy_(new.scale)
            return target
        if func in (
            torch.ops.aten.detach.default,
            torch.ops.aten._to_copy.default,
            torch.ops.aten.clone.default,
        ):
            own = args[0]
            parts = (func(own.codes), func(own.scale)) if kwargs is None else (own.codes, own.scale)
            return cls(*parts, own.shape, signed=own.signed)
        raise NotImplementedError(func)


class Rounding(enum.Enum):
    NEAREST = 1


class EighthSGD(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "momentum" not in state:
                    state["momentum"] = Eighth.of(torch.zeros_like(p))
                momentum = 0.9 * state["momentum"].read() + p.grad
                state["momentum"].copy_(momentum)
                p.sub_(group["lr"] * momentum)


def small(width: int = 8) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.Linear(width, width))
    return model, EighthSGD(model.parameters())


def train(model: nn.Module, opt: torch.optim.Optimizer, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    model(torch.randn(4, 8, generator=generator)).pow(2).mean().backward()
    opt.step()
    opt.zero_grad()


def test_a_state_made_of_several_tensors_that_appears_later_is_saved_and_restored(tmp_path: Path) -> None:
    model, opt = small()
    with holdfast.Run(tmp_path, model=model, optimizer=opt, every="1000 steps") as run:
        run.save_now("nothing has stepped yet").wait()
        for step in range(6):
            train(model, opt, step)
            run.end_step()
            run.save_now().wait()
    for step in range(6, 9):
        train(model, opt, step)
    again, opt_again = small()
    with holdfast.Run(tmp_path, model=again, optimizer=opt_again, every="1000 steps") as run:
        assert run.step == 6
        restored = opt_again.state[again[0].weight]["momentum"]
        assert type(restored) is Eighth
        assert restored.signed is True
        for step in range(6, 9):
            train(again, opt_again, step)
            run.end_step()
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
        mine, other = opt.state[a]["momentum"], opt_again.state[b]["momentum"]
        assert torch.equal(mine.codes, other.codes)
        assert torch.equal(mine.scale, other.scale)


@pytest.mark.parametrize("through", ["the wrapper", "a part"])
def test_a_wrapped_state_changed_during_the_copy_tears_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through: str
) -> None:
    model, opt = small()
    real, changing = torch_stager.Snapshot.finish, False

    def finish(snapshot: Any) -> None:
        if changing:
            momentum = opt.state[model[0].weight]["momentum"]
            if through == "a part":
                momentum.codes.add_(1)
            else:
                momentum.copy_(torch.ones(8, 8))
        real(snapshot)

    monkeypatch.setattr(torch_stager.Snapshot, "finish", finish)
    with holdfast.Run(tmp_path, model=model, optimizer=opt, every="1000 steps", copy="overlapped") as run:
        for step in range(3):
            train(model, opt, step)
            run.end_step()
            assert run.save_now().wait()
        changing = True
        handle = run.save_now()
        assert handle.ended_within(30)
        changing = False
        assert isinstance(handle.error, TornSnapshot)


def test_a_wrapped_weight_of_a_module_is_saved_and_restored(tmp_path: Path) -> None:
    def build() -> nn.Module:
        model = nn.Linear(4, 4)
        model.register_buffer("table", Eighth.of(torch.randn(4, 4)))
        return model

    model = build()
    with holdfast.Run(tmp_path, model=model, every="1000 steps") as run:
        run.end_step()
    again = build()
    holdfast.restore(tmp_path, {"model": again})
    assert torch.equal(again.table.codes, model.table.codes)
    assert torch.equal(holdfast.load_weights(tmp_path)["table"].scale, model.table.scale)
