"""What a save and a restore cost here, for a real training of a given size: holdfast and torch.save.

The two take turns, so that whatever else the machine does hits both.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import holdfast
from holdfast.clock import SystemClock
from holdfast.errors import SaveError
from holdfast.stores.os_errors import store_errors

_clock = SystemClock()
_MOST_ROUNDS = 7
_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds, medians. `training_seconds` is what one save takes from training in all: the stall, and the
    steps that ran slower while it was being copied and written."""

    stall_seconds: float
    training_seconds: float
    durable_seconds: float
    restore_seconds: float


@dataclass(frozen=True, kw_only=True)
class Measured:
    holdfast: Costs
    torch_save: Costs
    step_seconds: float
    state_bytes: int
    rounds: int


class Training:
    """A stack of linear layers under AdamW whose state has the wanted size."""

    def __init__(self, state_bytes: int) -> None:
        weights = state_bytes / 12  # a float32 and AdamW's two moments of it
        wide = max(min(2048, math.isqrt(int(weights / 2))), 16)
        layers = [nn.Linear(wide, wide) for _ in range(max(round(weights / wide**2), 1))]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._input = torch.ones(4, wide)
        self.step()

    def step(self) -> float:
        begin = _clock.monotonic()
        self.model(self._input).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return _clock.monotonic() - begin

    def state(self) -> dict[str, object]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def measure_saves(folder: Path, size: int, seconds: float, tell: Callable[[str], None]) -> Measured:
    """Train, save and restore in `folder` for about that long."""
    began = _clock.monotonic()
    training = Training(size)
    tracked: dict[str, Any] = {"model": training.model, "optimizer": training.optimizer}
    plain_file = folder / "plain.pt"
    ours: list[tuple[float, float, float]] = []
    theirs: list[float] = []
    with holdfast.Run(folder / "run", every="1000000000 steps", **tracked) as run:
        usual = statistics.median(_plain_step(training, run) for _ in range(5))
        # The first save plans and allocates; it is not what the thousandth one costs.
        _one_save(training, run, usual)
        while len(ours) < _MOST_ROUNDS:
            if run.stopping:
                # A run takes Ctrl-C for a wish to stop after a checkpoint; here there is nothing to keep.
                raise KeyboardInterrupt
            tell(f"saving, round {len(ours) + 1}")
            ours.append(_one_save(training, run, usual))
            theirs.append(_torch_save(training, plain_file))
            spent = _clock.monotonic() - began
            # A restore of each is still to come and takes about as long as a round.
            if spent + 2 * spent / (len(ours) + 1) > seconds:
                break
    tell("restoring")
    load_plain = _torch_load(training, plain_file)
    load_ours = holdfast.restore(folder / "run", into=tracked).seconds
    stall, cost, durable = (statistics.median(values) for values in zip(*ours, strict=True))
    plain = statistics.median(theirs)
    return Measured(
        holdfast=Costs(
            stall_seconds=stall,
            training_seconds=max(cost, stall),
            durable_seconds=durable,
            restore_seconds=load_ours,
        ),
        torch_save=Costs(
            stall_seconds=plain, training_seconds=plain, durable_seconds=plain, restore_seconds=load_plain
        ),
        step_seconds=usual,
        state_bytes=_size_of(training),
        rounds=len(ours),
    )


def _plain_step(training: Training, run: holdfast.Run) -> float:
    begin = _clock.monotonic()
    training.step()
    run.end_step()
    return _clock.monotonic() - begin


def _one_save(training: Training, run: holdfast.Run, usual: float) -> tuple[float, float, float]:
    """Stall, training time lost in all, and time until durable, of one save with training going on."""
    begin = _clock.monotonic()
    handle = run._require_open().saves.now("bench", by_name=False)
    lost = _clock.monotonic() - begin
    while not handle.done:
        lost += _plain_step(training, run) - usual
        if _clock.monotonic() - begin > _PATIENCE_SECONDS:
            raise SaveError(
                f"one save is not durable after {_PATIENCE_SECONDS:.0f} s", hint="use a smaller --size"
            )
    handle.wait()
    return handle.stall_seconds, max(lost, 0.0), handle.persist_seconds + handle.stall_seconds


def _torch_save(training: Training, path: Path) -> float:
    """As careful as plain torch.save can be made: a new name, fsync, rename, fsync of the folder."""
    part = path.with_suffix(".part")
    with store_errors("write with torch.save", str(path.parent)):
        begin = _clock.monotonic()
        with open(part, "wb") as file:
            torch.save(training.state(), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)
        return _clock.monotonic() - begin


def _torch_load(training: Training, path: Path) -> float:
    # From the disk and not from memory, as after a real restart; holdfast reads past the cache anyway.
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    begin = _clock.monotonic()
    state = torch.load(path, weights_only=True)
    training.model.load_state_dict(state["model"])
    training.optimizer.load_state_dict(state["optimizer"])
    return _clock.monotonic() - begin


def _size_of(training: Training) -> int:
    moments = training.optimizer.state_dict()["state"].values()
    tensors = [*training.model.state_dict().values(), *(t for entry in moments for t in entry.values())]
    return sum(tensor.nbytes for tensor in tensors)
