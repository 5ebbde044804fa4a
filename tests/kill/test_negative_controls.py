"""If any one captured item is not restored, the comparison with the uninterrupted run must fail.

Otherwise the kill test would prove nothing about that item.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import holdfast
from holdfast.capture.torch_module import TrackedModule
from holdfast.capture.torch_object import TrackedObject
from holdfast.capture.torch_optimizer import TrackedOptimizer
from holdfast.capture.torch_rng import TrackedRandomness
from holdfast.engine.run_state import RunState
from holdfast.testing.torch_loops import Objects, exact

EPOCHS, STOP_AFTER = 2, 3


def train(path: Path, *, stop_after: int | None = None) -> tuple[list[str], str]:
    objects, losses = Objects(), []
    with holdfast.Run(path, every="1000 steps", **objects.tracked) as run:
        for _ in run.epochs(EPOCHS):
            for batch in run.batches(objects.loader):
                losses.append(exact(objects.train_on(batch)))
                run.end_step()
                if run.step == stop_after:
                    return losses, objects.fingerprint()
    return losses, objects.fingerprint()


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], str]:
    """A run that was left early, and what the uninterrupted one did from there on."""
    base = tmp_path_factory.mktemp("runs")
    losses, fingerprint = train(base / "whole")
    train(base / "parts", stop_after=STOP_AFTER)
    return base / "parts", losses[STOP_AFTER:], fingerprint


def resume(interrupted: tuple[Path, list[str], str], tmp_path: Path) -> bool:
    """Whether what comes out of a resumed copy of the run is what should."""
    import shutil

    source, losses, fingerprint = interrupted
    shutil.copytree(source, tmp_path / "copy")
    return train(tmp_path / "copy") == (losses, fingerprint)


def test_with_everything_restored_the_run_is_the_same(interrupted: Any, tmp_path: Path) -> None:
    assert resume(interrupted, tmp_path)


def keeping(get: Callable[[], Any], put: Callable[[Any], Any]) -> Callable[[Any, Any, Any], None]:
    """An `apply` that puts back what was there before: the item is not restored."""

    def apply(real: Any, self: Any, state: Any) -> None:
        before = get()
        real(self, state)
        put(before)

    return apply


def nothing(real: Any, self: Any, state: Any) -> None:
    """Not restored at all."""


def without_buffer(name: str) -> Callable[[Any, Any, Any], None]:
    def apply(real: Any, self: Any, state: Any) -> None:
        before = self.module.get_buffer(name).clone()
        real(self, state)
        self.module.get_buffer(name).copy_(before)

    return apply


def without_moment(real: Any, self: Any, state: Any) -> None:
    real(self, state)
    next(iter(self.optimizer.state.values()))["exp_avg_sq"].zero_()


def without_positions(real: Any, self: Any, state: Any) -> None:
    real(self, {**state, "positions": {}})


def without_counter(real: Any, self: Any, state: Any) -> None:
    real(self, {**state, "step": 0, "epoch": 0, "positions": {}})


DROPPED: dict[str, tuple[type, Callable[[Any, Any, Any], None]]] = {
    "the model": (TrackedModule, nothing),
    "BatchNorm's mean": (TrackedModule, without_buffer("norm.running_mean")),
    "BatchNorm's variance": (TrackedModule, without_buffer("norm.running_var")),
    "BatchNorm's count": (TrackedModule, without_buffer("norm.num_batches_tracked")),
    "the optimizer": (TrackedOptimizer, nothing),
    "one moment": (TrackedOptimizer, without_moment),
    "the scheduler": (TrackedObject, nothing),
    "all randomness": (TrackedRandomness, nothing),
    "Python's randomness": (TrackedRandomness, keeping(random.getstate, random.setstate)),
    "NumPy's randomness": (TrackedRandomness, keeping(np.random.get_state, np.random.set_state)),
    "torch's randomness": (TrackedRandomness, keeping(torch.get_rng_state, torch.set_rng_state)),
    "the data position": (RunState, without_positions),
    "the counters": (RunState, without_counter),
}


@pytest.mark.parametrize("item", DROPPED)
def test_without_it_the_run_differs(
    item: str, interrupted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, apply = DROPPED[item]
    real = kind.apply  # type: ignore[attr-defined]
    monkeypatch.setattr(kind, "apply", lambda self, state: apply(real, self, state))
    assert not resume(interrupted, tmp_path)
