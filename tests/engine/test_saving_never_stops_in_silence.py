"""Loops whose optimizer holdfast was not told of, or cannot hear: they are saved, stopped and warned."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))


def backward(model: nn.Module) -> None:
    model(torch.randn(3, 2)).pow(2).mean().backward()


class Sam(torch.optim.Optimizer):
    """As in the reference implementation: `step` is never called, the base optimizer's is."""

    def __init__(self, params: Any, rho: float = 0.05) -> None:
        super().__init__(params, {"rho": rho})
        self.base_optimizer = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["old"] = p.detach().clone()
            p.add_(0.01 * p.grad)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for p in self.param_groups[0]["params"]:
            p.copy_(self.state[p]["old"])
        self.base_optimizer.step()

    def step(self, closure: Any = None) -> Any:
        raise NotImplementedError


class Deaf:
    """A library's own optimizer: it has `step`, and nothing that torch would call a hook."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def step(self) -> None:
        for p in self.model.parameters():
            p.data.sub_(0.1 * p.grad)

    def zero_grad(self) -> None:
        for p in self.model.parameters():
            p.grad = None


def made_anew(model: nn.Module) -> tuple[dict[str, Any], Callable[[], None]]:
    tracked = torch.optim.Adam(model.parameters(), lr=0.01)
    used = torch.optim.Adam(model.parameters(), lr=0.001)

    def step() -> None:
        used.zero_grad()
        backward(model)
        used.step()

    return {"optimizer": tracked}, step


def sam(model: nn.Module) -> tuple[dict[str, Any], Callable[[], None]]:
    optimizer = Sam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        backward(model)
        optimizer.first_step()
        backward(model)
        optimizer.second_step()

    return {"optimizer": optimizer}, step


def by_hand(model: nn.Module) -> tuple[dict[str, Any], Callable[[], None]]:
    """The tracked optimizer's state is used, its `step` is not: what a fused kernel or a wrapper does."""
    tracked, deaf = torch.optim.SGD(model.parameters(), lr=0.1), Deaf(model)

    def step() -> None:
        deaf.zero_grad()
        backward(model)
        deaf.step()

    return {"optimizer": tracked}, step


def untracked(model: nn.Module) -> tuple[dict[str, Any], Callable[[], None]]:
    _, step = made_anew(model)
    return {}, step


def nothing_but_deaf(model: nn.Module) -> tuple[dict[str, Any], Callable[[], None]]:
    _, step = by_hand(model)
    return {}, step


LOOPS = [made_anew, sam, by_hand, untracked, nothing_but_deaf]
EXPLICIT = pytest.mark.parametrize("explicit", [True, False], ids=["end_step", "implicit"])


def code_of(train: Callable[[], None]) -> Any:
    with pytest.raises(SystemExit) as left:
        train()
    return left.value.code


def loader(count: int = 40) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.zeros(count, 1)), batch_size=1)


@EXPLICIT
@pytest.mark.parametrize("loop", LOOPS, ids=lambda f: f.__name__)
def test_every_way_of_stepping_is_saved(tmp_path: Path, loop: Any, explicit: bool) -> None:
    model = small_model()
    tracked, step = loop(model)
    with holdfast.Run(tmp_path, every="1 step", model=model, **tracked) as run:
        for _ in run.batches(loader()):
            step()
            if explicit:
                run.end_step()
            if run.step >= 10 and holdfast.checkpoints(tmp_path):
                break
    assert run.step >= 10
    newest = holdfast.checkpoints(tmp_path)[0]
    assert newest.step == run.step
    weights = holdfast.load_weights(tmp_path)
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


@EXPLICIT
@pytest.mark.parametrize("loop", LOOPS, ids=lambda f: f.__name__)
def test_a_stop_stops_every_way_of_stepping(tmp_path: Path, loop: Any, explicit: bool) -> None:
    model = small_model()
    tracked, step = loop(model)
    done: list[int] = []

    def train() -> None:
        with holdfast.Run(tmp_path, model=model, **tracked) as run:
            for _ in run.batches(loader(400)):
                step()
                done.append(1)
                if len(done) == 5:
                    signal.raise_signal(signal.SIGTERM)
                if explicit:
                    run.end_step()

    assert code_of(train) == 75
    assert len(done) < 20
    weights = holdfast.load_weights(tmp_path)
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (made_anew, "Adam moves parameters of 'model', but it is not tracked"),
        (untracked, "Adam moves parameters of 'model', but it is not tracked"),
        (sam, "SGD moves parameters of 'model', but it is not tracked"),
        (by_hand, "weights of 'model' move, but no step of an optimizer is seen"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_what_is_not_heard_is_said_once_with_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loop: Any, words: str
) -> None:
    model = small_model()
    tracked, step = loop(model)
    with holdfast.Run(tmp_path, model=model, **tracked) as run:
        for _ in range(8):
            step()
            run.end_step()
    assert caplog.text.count(words) == 1
    assert "holdfast.Run(" in caplog.text


def test_an_optimizer_inside_a_tracked_object_is_tracked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrapper:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

        def state_dict(self) -> Any:
            return self.optimizer.state_dict()

        def load_state_dict(self, state: Any) -> None:
            self.optimizer.load_state_dict(state)

    model = small_model()
    for optimizer in (torch.optim.Adam(model.parameters()), torch.optim.SGD(model.parameters(), lr=0.1)):
        with holdfast.Run(tmp_path / type(optimizer).__name__, model=model, opt=Wrapper(optimizer)) as run:
            for _ in range(8):
                backward(model)
                optimizer.step()
                run.end_step()
    assert "not tracked" not in caplog.text


def test_an_optimizer_of_something_else_is_no_business_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, probe = small_model(), small_model()
    optimizer, other = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, probe))
    with holdfast.Run(tmp_path, model=model, optimizer=optimizer) as run:
        for _ in range(8):
            backward(probe)
            other.step()
            backward(model)
            optimizer.step()
            optimizer.zero_grad()
            run.end_step()
    assert "not tracked" not in caplog.text


def test_accumulated_gradients_of_an_optimizer_that_is_not_tracked_are_not_cut_apart(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Run(tmp_path, every="1 step", keep=100, model=model) as run:
        for step in range(1, 25):
            backward(model)
            if step % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            run.end_step()
            run._require_open().saves.saver.wait_for_all()
    steps = {c.step for c in holdfast.checkpoints(tmp_path)}
    # Before its first step nobody knows of it.
    assert {step for step in steps if step > 4} == {8, 12, 16, 20, 24}


def test_a_clipped_embedding_in_an_accumulation_is_no_step(tmp_path: Path) -> None:
    """max_norm moves one weight of many in the forward pass."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 3, max_norm=0.1), nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with holdfast.Run(tmp_path, every="1 step", keep=100, model=model, optimizer=optimizer) as run:
        for step in range(1, 13):
            with torch.no_grad():
                model[0].weight.mul_(2.0)
            model(torch.tensor([0, 1])).sum().backward()
            if step % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            run.end_step()
            run._require_open().saves.saver.wait_for_all()
    assert {c.step for c in holdfast.checkpoints(tmp_path)} == {4, 8, 12}


def test_a_loop_without_a_single_boundary_is_told_so_and_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    done: list[int] = []

    def train() -> None:
        with holdfast.Run(tmp_path, model=model, optimizer=optimizer):
            for count in range(1, 1000):
                done.append(count)
                backward(model)
                optimizer.step()
                optimizer.zero_grad()
                if count == 100:
                    assert "run.end_step()" in caplog.text
                    signal.raise_signal(signal.SIGTERM)

    assert code_of(train) == 75
    assert len(done) < 200
    weights = holdfast.load_weights(tmp_path)
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_gradients_that_nothing_ever_uses_are_said_and_hold_no_stop_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    done: list[int] = []

    def train() -> None:
        with holdfast.Run(tmp_path, model=model, optimizer=optimizer) as run:
            for count in range(1, 1000):
                done.append(count)
                backward(model)
                run.end_step()
                if count == 150:
                    assert "gradients are pending" in caplog.text
                    signal.raise_signal(signal.SIGTERM)

    assert code_of(train) == 75
    assert len(done) < 200
