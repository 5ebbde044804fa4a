"""An exception between two steps, in a validation perhaps, does not cost the steps before it."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import holdfast
from holdfast.engine import torch_saving
from holdfast.engine.torch_snapshots import Snapshots
from holdfast.testing.fake_clock import FakeClock
from holdfast.testing.torch_loops import Objects, exact


@pytest.fixture(autouse=True)
def passes_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it costs is little beside them."""
    monkeypatch.setattr(torch_saving, "_HOLD_SHARE", math.inf)


def whole(path: Path, held_out: Any) -> tuple[list[str], str]:
    objects = Objects()
    losses = train(path, objects, lambda epoch: None, held_out)
    return losses, objects.fingerprint()


def train(
    path: Path,
    objects: Objects,
    validate: Callable[[int], None],
    held_out: Any = None,
    *,
    saved_before: bool = True,
    **settings: Any,
) -> list[str]:
    losses = []
    with holdfast.Run(path, **{"every": "1000 steps", **settings}, **objects.tracked) as run:
        if saved_before:
            run.save_now().wait()
        for epoch in run.epochs(3):
            for batch in run.batches(objects.loader):
                losses.append(exact(objects.train_on(batch)))
                run.end_step()
            for _ in run.batches(held_out, whole_passes=True) if held_out else ():
                pass
            validate(epoch)
    return losses


def fails_in(wanted: int) -> Callable[[int], None]:
    def validate(epoch: int) -> None:
        if epoch == wanted:
            raise ZeroDivisionError("in the validation")

    return validate


@pytest.mark.parametrize("validated", ["by itself", "through run.batches"])
def test_an_error_in_the_validation_costs_no_step_and_no_bit(tmp_path: Path, validated: str) -> None:
    held_out = DataLoader(TensorDataset(torch.zeros(4, 1))) if validated == "through run.batches" else None
    losses, fingerprint = whole(tmp_path / "whole", held_out)
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "parts", Objects(), fails_in(1), held_out)
    assert holdfast.checkpoints(tmp_path / "parts")[0].step == 10
    torch.rand(3)  # the streams are somewhere else
    objects = Objects()
    assert train(tmp_path / "parts", objects, lambda epoch: None, held_out) == losses[10:]
    assert objects.fingerprint() == fingerprint


def test_also_before_the_first_save_of_all(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, Objects(), fails_in(0), saved_before=False)
    assert [c.step for c in holdfast.checkpoints(tmp_path)] == [5]


def test_weights_that_were_swapped_for_the_validation_are_not_taken_for_the_models(tmp_path: Path) -> None:
    objects = Objects()

    def validate(epoch: int) -> None:
        with torch.no_grad():
            for p in objects.model.parameters():
                p.zero_()
        raise ZeroDivisionError("with averaged weights in place")

    with pytest.raises(ZeroDivisionError):
        train(tmp_path, objects, validate)
    assert [c.step for c in holdfast.checkpoints(tmp_path)] == [0]


def test_an_error_inside_a_step_saves_nothing_of_it(tmp_path: Path) -> None:
    objects = Objects()

    def fail() -> None:
        with holdfast.Run(tmp_path, every="1000 steps", **objects.tracked) as run:
            run.save_now().wait()
            for _ in run.epochs(2):
                for batch in run.batches(objects.loader):
                    if run.step == 7:
                        raise ZeroDivisionError
                    objects.train_on(batch)
                    run.end_step()

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [c.step for c in holdfast.checkpoints(tmp_path)] == [0]


def test_ctrl_c_twice_does_not_wait_for_it(tmp_path: Path) -> None:
    def validate(epoch: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, Objects(), validate)
    assert [c.step for c in holdfast.checkpoints(tmp_path)] == [0]


def test_what_is_held_is_in_nobodys_way(tmp_path: Path) -> None:
    """One slot of memory: the save that is wanted gets it."""
    objects = Objects()

    def validate(epoch: int) -> None:
        pass

    train(tmp_path, objects, validate, keep="latest 9, epoch ends", memory_limit="64 KB")
    assert [c.step for c in holdfast.checkpoints(tmp_path)] == [15, 10, 5, 0]


def test_passes_that_are_shorter_than_holding_on_are_not_slowed_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_saving, "_HOLD_SHARE", 0.01)
    held: list[int] = []
    real = Snapshots.hold

    def hold(snapshots: Snapshots) -> Any:
        held.append(1)
        clock.advance(1.0)
        return real(snapshots)

    monkeypatch.setattr(Snapshots, "hold", hold)
    clock, objects = FakeClock(), Objects()
    with holdfast.Run(tmp_path, every="1000000 steps", clock=clock, **objects.tracked) as run:
        for epoch in run.epochs(6):
            for batch in run.batches(objects.loader):
                objects.train_on(batch)
                run.end_step()
            assert len(held) == 1 + (epoch == 5)
            clock.advance(200.0 if epoch == 4 else 1.0)
