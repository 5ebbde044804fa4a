"""A torn snapshot teaches: what tore is copied at the boundary from then on; saves by name never tear."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast.events import SnapshotTorn
from holdfast.staging import torch_stager
from holdfast.stores.journal import read_events


class LateCopies:
    """An overlapped copy begins only when the next optimizer step waits for it: behind the forward pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = threading.Event()
        finish, hold = torch_stager.Snapshot.finish, torch_stager.Snapshot.hold_updates

        def late(snapshot: Any) -> None:
            if threading.current_thread() is not threading.main_thread():
                assert self.now.wait(30)
            finish(snapshot)

        def release(snapshot: Any) -> None:
            self.now.set()
            hold(snapshot)
            self.now.clear()

        monkeypatch.setattr(torch_stager.Snapshot, "finish", late)
        monkeypatch.setattr(torch_stager.Snapshot, "hold_updates", release)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[LateCopies]:
    copies = LateCopies(monkeypatch)
    yield copies
    copies.now.set()


class Clipped(nn.Module):
    """The forward pass changes the embedding, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(4, 3, max_norm=1.0)
        self.out = nn.Linear(3, 64)

    def forward(self) -> torch.Tensor:
        return self.out(self.words(torch.tensor([0, 1, 2, 3]))).pow(2).mean()


def tears(path: Path) -> list[int]:
    return [e.step for e in read_events(str(path)) if isinstance(e, SnapshotTorn)]


def train(run: holdfast.Run, model: nn.Module, opt: Any, steps: int, late: LateCopies) -> None:
    for _ in range(steps):
        model().backward()
        with torch.no_grad():
            model.words.weight.mul_(2.0)  # so that every forward pass has something to clip
        opt.step()
        opt.zero_grad()
        run._require_open().saves.saver.wait_for_all()
        run.end_step()


def test_what_tore_once_is_copied_at_the_boundary_from_then_on(tmp_path: Path, late: LateCopies) -> None:
    model = Clipped()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with holdfast.Run(tmp_path, every="2 steps", copy="overlapped", keep=50, model=model, opt=opt) as run:
        train(run, model, opt, 24, late)
        saves = run._require_open().saves.saver
        late.now.set()
        saves.wait_for_all()
        plan = run._require_open().snapshots._layout
    assert len(tears(tmp_path)) == 1
    # Everything else still waits for the forward pass.
    assert plan is not None
    lazy = {p.label for p in plan.plan.placements if p.lazy}
    assert any("out.weight" in label for label in lazy)
    assert not any("words.weight" in label for label in lazy if label.startswith("model"))


@pytest.mark.parametrize("how", ["best", "keep", "save_now", "epoch end"])
def test_a_save_that_is_asked_for_by_name_is_of_that_very_state(
    tmp_path: Path, late: LateCopies, how: str
) -> None:
    # The forward pass that follows each save clips what was to be saved.
    model = Clipped()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    keep = {"best": "latest 2, best 2 of -val_loss", "epoch end": "latest 2, epoch ends"}.get(how, 9)
    wanted = {}
    with holdfast.Run(tmp_path, every="1000 steps", keep=keep, model=model, opt=opt) as run:
        for _ in run.epochs(2):
            train(run, model, opt, 3, late)
            if how == "best":
                run.report(val_loss=float(10 - run.step))
            elif how == "keep":
                run.save_now(keep=f"step {run.step}")
            elif how == "save_now":
                run.save_now()
            wanted[run.step] = model.words.weight.detach().clone()
        late.now.set()
    steps = {c.step for c in holdfast.checkpoints(tmp_path)}
    assert set(wanted) <= steps
    for step, weight in wanted.items():
        assert torch.equal(holdfast.load_weights(tmp_path, step=step)["words.weight"], weight)
    assert tears(tmp_path) == []


def test_weights_that_are_swapped_as_a_whole_once_are_not_copied_early_for_ever(
    tmp_path: Path, late: LateCopies
) -> None:
    """Averaged weights stand in for the model during one validation: one torn save, and no more stall."""
    model = Clipped()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Run(tmp_path, every="1 step", copy="overlapped", model=model, opt=opt) as run:
        for step in range(6):
            if step == 3:
                own = [p.detach().clone() for p in model.parameters()]
                with torch.no_grad():
                    for p in model.parameters():
                        p.zero_()
                    for p, mine in zip(model.parameters(), own, strict=True):
                        p.copy_(mine)
            model.out(torch.zeros(1, 3)).pow(2).mean().backward()
            opt.step()
            opt.zero_grad()
            run._require_open().saves.saver.wait_for_all()
            run.end_step()
        late.now.set()
        run._require_open().saves.saver.wait_for_all()
        layout = run._require_open().snapshots._layout
    assert len(tears(tmp_path)) == 1
    assert layout is not None
    assert any(p.lazy for p in layout.plan.placements)
