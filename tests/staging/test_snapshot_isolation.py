"""What a file holds is the state at the save, whatever training does right after it."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast.capture.torch_registry import track
from holdfast.clock import SystemClock
from holdfast.engine.background import Worker
from holdfast.engine.settings import Settings
from holdfast.engine.torch_snapshots import Snapshots
from holdfast.errors import TornSnapshot
from holdfast.staging import torch_stager


class Statistics:
    """A user's object with tensors that change in place, as an EMA or a running metric does."""

    def __init__(self) -> None:
        self.mean = torch.zeros(5)
        self.history = [torch.zeros(2)]

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.history = state["mean"], state["history"]


class Momentum(nn.Module):
    """A frozen encoder that the forward pass moves through `.data`, unseen by version counters."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for slow, fast in zip(self.key.parameters(), self.query.parameters(), strict=True):
            slow.data.mul_(0.5).add_(fast.data, alpha=0.5)
        return (self.norm(self.query(x)) - self.key(x)).pow(2).mean()


def everything(*objects: Any) -> list[Any]:
    return [{k: _clone(v) for k, v in o.state_dict().items()} for o in objects]


def _clone(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: _clone(v) for k, v in value.items()}
    return [_clone(v) for v in value] if isinstance(value, (list, tuple)) else value


def agree(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(agree(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(agree, a, b))
    return bool(a == b)


class SlowCopies:
    """Holds the overlapped copy back until told, so that training is certainly ahead of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_copy = threading.Event()
        self.reached = threading.Event()
        real = torch_stager.Snapshot.finish

        def finish(snapshot: Any) -> None:
            self.reached.set()
            assert self.may_copy.wait(30)
            real(snapshot)

        monkeypatch.setattr(torch_stager.Snapshot, "finish", finish)


@pytest.mark.parametrize("copy", ["overlapped", "blocking"])
@pytest.mark.parametrize("memory_limit", [None, 24_000, 1_000], ids=["two slots", "one slot", "streamed"])
def test_the_file_holds_the_state_at_the_save(tmp_path: Path, copy: Any, memory_limit: int | None) -> None:
    torch.manual_seed(0)
    model, stats = Momentum(), Statistics()
    opt = torch.optim.AdamW(model.parameters(), lr=0.1)
    tracked = {"model": model, "opt": opt, "stats": stats}
    expected = {}
    with holdfast.Run(
        tmp_path, every="1000 steps", copy=copy, memory_limit=memory_limit, keep=50, **tracked
    ) as run:
        for step in range(12):
            model(torch.randn(8, 4)).backward()
            opt.step()
            opt.zero_grad()
            run.end_step()
            expected[run.step] = everything(model, opt, stats)
            handle = run.save_now()
            # Everything changes at once, each along the path on which it changes in training.
            with torch.no_grad():
                stats.mean.add_(1)
                stats.history[0].mul_(3).sub_(step)
                for buffer in model.buffers():
                    buffer.add_(1)
            model(torch.randn(8, 4)).backward()
            opt.step()
            handle.wait()
            opt.zero_grad()
    for step, state in expected.items():
        fresh, fresh_stats = Momentum(), Statistics()
        fresh_opt = torch.optim.AdamW(fresh.parameters(), lr=0.1)
        holdfast.restore(tmp_path, {"model": fresh, "opt": fresh_opt, "stats": fresh_stats}, step=step)
        assert agree(everything(fresh, fresh_opt, fresh_stats), state), f"step {step}"


def test_buffers_and_parameters_belong_to_one_step_under_a_slow_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B3 of the predecessor: parameters of step 5 beside BatchNorm statistics of step 6."""
    slow = SlowCopies(monkeypatch)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Run(tmp_path, every="1000 steps", copy="overlapped", model=model, opt=opt) as run:
        for _ in range(5):
            model(torch.randn(4, 3)).sum().backward()
            opt.step()
            opt.zero_grad()
            run.end_step()
        before = everything(model)
        handle = run.save_now()
        assert slow.reached.wait(30)
        # The next forward and backward pass, while not one parameter has been copied.
        model(torch.randn(4, 3)).sum().backward()
        assert int(model[1].num_batches_tracked) == 6
        threading.Timer(0.05, slow.may_copy.set).start()
        opt.step()  # the fence: must wait for the copy
        assert slow.may_copy.is_set()
        handle.wait()
    weights = holdfast.load_weights(tmp_path, step=5)
    assert int(weights["1.num_batches_tracked"]) == 5
    assert agree(before[0], weights)


def test_a_momentum_encoder_moved_by_the_forward_pass_is_of_the_same_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowCopies(monkeypatch)
    model = Momentum()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)  # the frozen ones too, as such scripts do
    with holdfast.Run(tmp_path, every="1000 steps", copy="overlapped", model=model, opt=opt) as run:
        model(torch.randn(4, 4)).backward()
        opt.step()
        run.end_step()
        before = everything(model)
        handle = run.save_now()
        model(torch.randn(4, 4))
        slow.may_copy.set()
        handle.wait()
    assert agree(before[0], holdfast.load_weights(tmp_path, step=1))


def test_a_torn_copy_is_thrown_away_reported_and_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slow = SlowCopies(monkeypatch)
    model = nn.Linear(3, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Run(tmp_path, every="1000 steps", copy="overlapped", model=model, opt=opt) as run:

        def step() -> None:
            model(torch.ones(1, 3)).sum().backward()
            opt.step()
            opt.zero_grad()
            run.end_step()

        step()
        handle = run.save_now()
        with torch.no_grad():
            model.weight.mul_(2)  # past the fence: nobody asked an optimizer
        slow.may_copy.set()
        with pytest.raises(TornSnapshot, match=r"model\['weight'\] changed while it was being copied"):
            handle.wait()
        assert holdfast.checkpoints(tmp_path) == []
        step()
        expected = everything(model)
        assert "failed" in caplog.text
    [newest] = holdfast.checkpoints(tmp_path)
    assert newest.step == 2
    assert "torn" in newest.reason
    assert agree(expected[0], holdfast.load_weights(tmp_path))


def test_a_thousand_snapshots_are_isolated() -> None:
    """The copy itself, without a disk: every tensor is overwritten as soon as control returns."""
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    opt = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    copier = Worker("holdfast-copy")
    snapshots = Snapshots(
        track({"model": model, "opt": opt}), Settings(copy="overlapped"), SystemClock(), copier
    )
    tensors = [*model.parameters(), *model.buffers()]
    for number in range(1000):
        with torch.no_grad():
            for tensor in tensors:
                tensor.fill_(number)
        taken = snapshots.take()
        assert taken is not None
        assert taken.snapshot is not None
        snapshots.hold_updates()
        with torch.no_grad():
            for tensor in tensors:
                tensor.fill_(-1)
        assert taken.snapshot.wait(20)
        assert taken.snapshot.error is None
        for place in taken.plan.placements:
            image = taken.snapshot.images[place.image]
            values = torch.frombuffer(bytearray(image.view(place.start, place.stop)), dtype=place.dtype)
            assert torch.all(values == number), place.label
        taken.release()
    assert copier.close(20)


def test_a_state_that_grows_during_a_slow_write_neither_blocks_nor_poisons(tmp_path: Path) -> None:
    """A new layout needs the old one's memory: no save while that is being written, and then there is."""
    growing = Statistics()
    copier = Worker("holdfast-copy")
    snapshots = Snapshots(track({"stats": growing}), Settings(), SystemClock(), copier)
    taken = snapshots.take()
    assert taken is not None
    growing.history.append(torch.ones(3))
    for _ in range(3):
        assert snapshots.take() is None
    assert taken.snapshot is not None
    assert taken.snapshot.wait(20)
    taken.release()
    again = snapshots.take()
    assert again is not None
    assert again.snapshot is not None
    assert again.snapshot.wait(20)
    again.release()
    assert copier.close(20)


def test_a_slot_that_was_given_up_while_being_filled_comes_back_when_that_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = SlowCopies(monkeypatch)
    stats = Statistics()
    copier = Worker("holdfast-copy")
    settings = Settings(copy="overlapped", memory_limit_bytes=10_000)
    snapshots = Snapshots(track({"stats": stats}), settings, SystemClock(), copier)
    taken = snapshots.take()
    assert taken is not None
    assert snapshots.budget is not None
    assert snapshots.budget.slots == 1
    taken.release()
    assert snapshots.take() is None  # still being copied into
    slow.may_copy.set()
    assert copier.close(20)
    again = snapshots.take()
    assert again is not None
    assert again.snapshot is not None
    assert again.snapshot.wait(20)
    again.release()
    assert copier.close(20)


@pytest.mark.parametrize(
    ("memory_limit", "says"),
    [(None, "two slots"), (24_000, "one slot"), (1_000, "streamed and block training")],
)
def test_the_run_says_what_its_memory_allows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, memory_limit: int | None, says: str
) -> None:
    model = Momentum()
    opt = torch.optim.AdamW(model.parameters())
    with caplog.at_level("INFO", "holdfast"):
        with holdfast.Run(tmp_path, memory_limit=memory_limit, model=model, opt=opt) as run:
            model(torch.randn(2, 4)).backward()
            opt.step()
            run.end_step()
            run.save_now().wait()
    assert says in caplog.text


def test_without_threads_saves_are_made_where_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    model = nn.Linear(2, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    worker_start = threading.Thread.start

    def refuse_ours(self: threading.Thread) -> None:
        if self.name.startswith("holdfast"):
            refuse(self)
        worker_start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse_ours)
    with holdfast.Run(tmp_path, every="1000 steps", copy="overlapped", model=model, opt=opt) as run:
        model(torch.ones(1, 2)).sum().backward()
        opt.step()
        run.end_step()
        handle = run.save_now()
        assert handle.done
        opt.step()
        handle.wait()
        monkeypatch.undo()
    assert holdfast.checkpoints(tmp_path)[-1].step == 1


class Swapped:
    """A run whose copy is held back, so that weights can be swapped first, as for validation."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slow = SlowCopies(monkeypatch)
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 200), nn.Linear(200, 100))
        with torch.no_grad():
            self.model[0].weight[0, 0] = float("nan")  # must not look like a change
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.run = holdfast.Run(path, every="1000 steps", copy="overlapped", model=self.model, opt=self.opt)

    def swap(self, how: str) -> list[torch.Tensor]:
        before = [p.data for p in self.model.parameters()]
        kept = [b.clone() for b in before]
        for p, b in zip(self.model.parameters(), before, strict=True):
            if how == "replaced":
                p.data = b * 0.5
            else:
                p.data.mul_(0.5)
        return kept

    def swap_back(self, kept: list[torch.Tensor]) -> None:
        for p, b in zip(self.model.parameters(), kept, strict=True):
            p.data.copy_(b)


@pytest.mark.parametrize("how", ["replaced", "in place"])
def test_weights_swapped_through_data_before_the_copy_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    swapped = Swapped(tmp_path, monkeypatch)
    with swapped.run as run:
        run.end_step()
        handle = run.save_now()
        kept = swapped.swap(how)
        swapped.slow.may_copy.set()
        assert handle.ended_within(20)
        swapped.swap_back(kept)  # too late: the copy is of the wrong weights, whatever stands there now
        with pytest.raises(TornSnapshot, match=r"changed, through .data perhaps"):
            handle.wait()
        run.end_step()
    weights = holdfast.load_weights(tmp_path)
    for (name, now), before in zip(swapped.model.named_parameters(), kept, strict=True):
        assert torch.equal(weights[name].nan_to_num(), before.nan_to_num()), name
        assert torch.equal(now.nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize("how", ["replaced", "in place"])
def test_weights_swapped_and_swapped_back_before_the_copy_are_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    swapped = Swapped(tmp_path, monkeypatch)
    with swapped.run as run:
        run.end_step()
        handle = run.save_now()
        swapped.swap_back(swapped.swap(how))
        swapped.slow.may_copy.set()
        handle.wait()


def test_of_many_tensors_a_sample_is_guarded_with_the_last_one_copied() -> None:
    model = nn.ModuleList([nn.Linear(4, 4) for _ in range(500)])
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    copier = Worker("holdfast-copy")
    snapshots = Snapshots(
        track({"model": model, "opt": opt}), Settings(copy="blocking"), SystemClock(), copier
    )
    taken = snapshots.take()
    assert taken is not None
    assert snapshots._layout is not None
    copies = snapshots._layout.copies
    assert 8 <= len(copies.guard.positions) <= 16
    assert (*copies.later.large, *copies.later.small)[-1] in copies.guard.positions
    assert (*copies.later.large, *copies.later.small)[0] in copies.guard.positions
    taken.release()
