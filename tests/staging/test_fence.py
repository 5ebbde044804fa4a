"""The fence stands before every way in which an optimizer can step, and nowhere else."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast.staging import torch_stager
from holdfast.staging.torch_fence import Fence


class Order:
    """Writes down when the fence and the update happened."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter
        self.before: list[float] = []
        self.after: list[float] = []

    def fence(self, *optimizers: torch.optim.Optimizer) -> Fence:
        value = lambda: float(self.parameter.detach().sum())  # noqa: E731
        return Fence(optimizers, lambda: self.before.append(value()), lambda _: self.after.append(value()))


def linear() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(2, 1)


def backward(model: nn.Module) -> torch.Tensor:
    loss = model(torch.ones(3, 2)).pow(2).mean()
    loss.backward()
    return loss


def test_the_fence_runs_before_the_update_and_the_mark_behind_it() -> None:
    model = linear()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    order = Order(model.weight)
    fence = order.fence(opt)
    start = float(model.weight.detach().sum())
    backward(model)
    opt.step()
    assert order.before == [start]
    assert order.after == [float(model.weight.detach().sum())] != [start]
    fence.remove()
    opt.step()
    assert len(order.before) == 1


def test_a_closure_is_evaluated_behind_the_fence() -> None:
    model = linear()
    opt = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    order = Order(model.weight)
    fence = order.fence(opt)

    def closure() -> torch.Tensor:
        assert len(order.before) == 1
        opt.zero_grad()
        return backward(model)

    loss = opt.step(closure)
    assert loss is not None  # the return value is the user's
    assert (len(order.before), len(order.after)) == (1, 1)
    fence.remove()


def test_a_subclass_that_calls_its_base_is_fenced() -> None:
    class Careful(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    model = linear()
    opt = Careful(model.parameters(), lr=0.1)
    order = Order(model.weight)
    fence = order.fence(opt)
    start = float(model.weight.detach().sum())
    backward(model)
    opt.step()
    # Perhaps twice, but never after the change.
    assert set(order.before) == {start}
    fence.remove()


def test_a_skipped_step_of_a_scaler_passes_no_fence() -> None:
    model = linear()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    order = Order(model.weight)
    fence = order.fence(opt)
    for factor, fenced in ((float("inf"), 0), (1.0, 1)):
        opt.zero_grad()
        scaler.scale(model(torch.ones(1, 2)).sum() * factor).backward()
        scaler.step(opt)
        scaler.update()
        assert len(order.before) == fenced
    fence.remove()


def test_every_optimizer_is_fenced() -> None:
    one, two = linear(), linear()
    first, second = torch.optim.SGD(one.parameters(), lr=0.1), torch.optim.Adam(two.parameters())
    order = Order(one.weight)
    fence = order.fence(first, second)
    for model in (one, two):
        backward(model)
    first.step()
    second.step()
    assert len(order.before) == 2
    fence.remove()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_compiled_step_is_fenced() -> None:
    model = linear()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    order = Order(model.weight)
    fence = order.fence(opt)

    @torch.compile(backend="eager")
    def step() -> None:
        opt.step()

    for number in range(3):
        before = float(model.weight.detach().sum())
        backward(model)
        step()
        assert order.before[number] == before
    assert len(order.before) == len(order.after) == 3
    fence.remove()


def test_the_fence_waits_for_the_copy_and_does_not_spin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    release = threading.Event()
    real = torch_stager.Snapshot.finish

    def slow(snapshot: Any) -> None:
        assert release.wait(30)
        real(snapshot)

    monkeypatch.setattr(torch_stager.Snapshot, "finish", slow)
    model = linear()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Run(tmp_path, every="1000 steps", copy="overlapped", model=model, opt=opt) as run:
        backward(model)
        opt.step()
        run.end_step()
        before = {k: v.clone() for k, v in model.state_dict().items()}
        handle = run.save_now()
        backward(model)
        threading.Timer(0.4, release.set).start()
        busy = time.thread_time()
        opt.step()
        busy = time.thread_time() - busy
        assert release.is_set()
        # Waiting on an event takes next to no processor time; spinning would have taken all of the 0.4 s.
        assert busy < 0.2
        handle.wait()
    weights = holdfast.load_weights(tmp_path, step=1)
    assert all(torch.equal(before[k], weights[k]) for k in before)


def test_a_copy_that_never_ends_lets_training_go_on_and_is_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    real = torch_stager.Snapshot.finish

    def stuck(snapshot: Any) -> None:
        assert release.wait(30)
        real(snapshot)

    monkeypatch.setattr(torch_stager.Snapshot, "finish", stuck)
    model = linear()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    run = holdfast.Run(tmp_path, every="1000 steps", copy="overlapped", wait_limit=0.2, model=model, opt=opt)

    def train() -> None:
        with run:
            backward(model)
            opt.step()
            run.end_step()
            handle = run.save_now()
            backward(model)
            opt.step()
            with pytest.raises(holdfast.SaveError):
                handle.wait(5)
            release.set()
            raise RuntimeError("over")

    with pytest.raises(RuntimeError, match="over"):
        train()
    assert holdfast.checkpoints(tmp_path) == []
