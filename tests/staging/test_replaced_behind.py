"""What is replaced, added or dropped between a boundary and the copy behind it: the checkpoint holds the
state at the boundary, or there is none. Never anything else."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast.errors import TornSnapshot
from holdfast.staging import torch_stager


class Replacing(nn.Module):
    """Its forward pass puts a new tensor in the place of a buffer, as hand-written running means do."""

    running: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("running", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.running = 0.9 * self.running + x.mean(0)
        return self.linear(x).pow(2).mean()


class Keeper:
    """A user's object that gives out a new container with new values each time."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {"count": 0, "means": [torch.zeros(3)]}

    def state_dict(self) -> dict[str, Any]:
        return self.seen

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state


class Script:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Replacing()
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.opt, 0.5)
        self.keeper = Keeper()
        self.tracked = {
            "model": self.model, "opt": self.opt, "scheduler": self.scheduler, "keeper": self.keeper,
        }  # fmt: skip

    def step(self) -> None:
        self.model(torch.randn(3, 4)).backward()
        self.opt.step()
        self.opt.zero_grad()
        self.scheduler.step()

    def state(self) -> dict[str, Any]:
        return {name: _copy(thing.state_dict()) for name, thing in self.tracked.items()}  # type: ignore[attr-defined]


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: _copy(v) for k, v in value.items()}
    return [_copy(v) for v in value] if isinstance(value, (list, tuple)) else value


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def replace_parameter(s: Script) -> None:
    s.model.linear.weight = nn.Parameter(torch.full((4, 4), 7.0))


def replace_parameter_data(s: Script) -> None:
    s.model.linear.weight.data = torch.full((4, 4), 7.0)


def replace_moment(s: Script) -> None:
    s.opt.state[s.model.linear.weight]["momentum_buffer"] = torch.full((4, 4), 7.0)


def replace_moment_by_one_as_often_written(s: Script) -> None:
    state = s.opt.state[s.model.linear.weight]
    other = torch.full((4, 4), 7.0)
    while other._version < state["momentum_buffer"]._version:
        other.add_(0.0)
    state["momentum_buffer"] = other


def write_moment(s: Script) -> None:
    s.opt.state[s.model.linear.weight]["momentum_buffer"].fill_(7.0)


def load_optimizer(s: Script) -> None:
    other = Script()
    other.step()
    s.opt.load_state_dict(other.opt.state_dict())


def add_group(s: Script) -> None:
    s.opt.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


def keep_something_else(s: Script) -> None:
    s.keeper.seen["count"] = 99
    s.keeper.seen["means"].append(torch.ones(1))
    s.keeper.seen["means"][0] = torch.full((3,), 7.0)


def change_settings(s: Script) -> None:
    s.opt.param_groups[0]["lr"] = 77.0
    s.opt.param_groups[0]["momentum"] = 0.0


CHANGES: dict[str, Callable[[Script], Any]] = {
    "nothing": lambda s: None,
    "a forward pass": lambda s: s.model(torch.ones(3, 4)).backward(),
    "a buffer is replaced": lambda s: setattr(s.model, "running", torch.full((4,), 7.0)),
    "a buffer is added": lambda s: s.model.register_buffer("extra", torch.ones(2)),
    "a parameter is replaced": replace_parameter,
    "a parameter's data is replaced": replace_parameter_data,
    "a layer is replaced": lambda s: setattr(s.model, "linear", nn.Linear(4, 4)),
    "a moment is replaced": replace_moment,
    "a moment is replaced by one as often written": replace_moment_by_one_as_often_written,
    "a moment is written": write_moment,
    "all moments are dropped": lambda s: s.opt.state.clear(),
    "the optimizer is loaded": load_optimizer,
    "a group is added": add_group,
    "the scheduler steps": lambda s: s.scheduler.step(),
    "settings change": change_settings,
    "the user's object changes": keep_something_else,
}


@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("saves_before", [0, 2], ids=["first save", "third save"])
def test_the_checkpoint_holds_the_boundary_or_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, saves_before: int
) -> None:
    script = Script()
    may_finish = threading.Event()
    may_finish.set()
    real = torch_stager.Snapshot.finish

    def finish(snapshot: Any) -> None:
        assert may_finish.wait(30)
        real(snapshot)

    monkeypatch.setattr(torch_stager.Snapshot, "finish", finish)
    settings: Any = {"every": "1000 steps", "copy": "overlapped", "keep": 9}
    with holdfast.Run(tmp_path, **settings, **script.tracked) as run:
        for _ in range(saves_before + 1):
            script.step()
            run.end_step()
            if run.step <= saves_before:
                run.save_now().wait()
        boundary, step = script.state(), run.step
        may_finish.clear()
        handle = run.save_now()
        CHANGES[change](script)
        may_finish.set()
        assert handle.ended_within(30)
        # What was torn is taken again; that one is not looked at here.
    if handle.error is not None:
        assert isinstance(handle.error, TornSnapshot), handle.error
        assert change not in ("nothing", "a forward pass", "the scheduler steps")
        return
    fresh = Script()
    # Another save of the same step may follow at the exit: look at the one whose handle we hold.
    newer = [c.name for c in holdfast.checkpoints(tmp_path) if c.step == step and c.name != handle.name]
    for name in newer:
        (tmp_path / "ckpt" / name).rename(tmp_path / name)
    holdfast.restore(tmp_path, fresh.tracked, step=step)
    assert same(fresh.state(), boundary), change
