"""The measurements of `holdfast bench`: limits of memory and disk, costs of saves and restores.

holdfast and torch.save take turns, so that whatever else the machine does hits both.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import holdfast
from holdfast.checkpoints.read import allocate_pages
from holdfast.clock import SystemClock
from holdfast.errors import SaveError
from holdfast.format.checksum import chunk_count, chunk_span, digest
from holdfast.stores.os_errors import store_errors
from holdfast.stores.posix import PosixIO
from holdfast.stores.side_by_side import side_by_side

_now = SystemClock().monotonic
_THREADS = 2
_MOST_BYTES = 512 << 20
_MOST_ROUNDS = 7
_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Limits:
    """Bytes per second, the best of the repeats: a limit is what the machine can do at all."""

    memory_copy: float
    digest: float
    write_and_fsync: float
    read: float
    bytes: int


def measure_limits(folder: Path, size: int, seconds: float) -> Limits:
    """Measure in `folder` for about that long, the disk past its cache where that is possible."""
    size = max(min(size, _MOST_BYTES) & ~0xFFFFF, 1 << 20)
    source, target = allocate_pages(size), allocate_pages(size)
    # Numbers without a pattern, so that no disk can compress or deduplicate them.
    np.frombuffer(source, np.uint8)[:] = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    np.frombuffer(target, np.uint8)[:] = 1
    io, name = PosixIO(), "limits"
    parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def copy() -> None:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))

    def write() -> None:
        file = io.create(parent, name, direct=True)
        try:
            io.preallocate(file, size)
            _chunks(size, lambda a, b: io.write_at(file, source[a:b], a))
            io.fsync(file)
        finally:
            io.close(file)

    def remove() -> None:
        (folder / name).unlink(missing_ok=True)

    def read() -> None:
        file = io.open_read(parent, name, direct=True)
        try:
            _chunks(size, lambda a, b: io.read_at(file, target[a:b], a))
        finally:
            io.close(file)

    def sums() -> None:
        _chunks(size, lambda a, b: len(digest(source[a:b])) and b - a)

    try:
        with store_errors("measure", str(folder)):
            speeds = [size / _best(work, seconds / 4) for work in (copy, sums)]
            speeds += [size / _best(write, seconds / 4, remove), size / _best(read, seconds / 4)]
    finally:
        os.close(parent)
    copied, summed, written, got = speeds
    return Limits(copied, summed, written, got, size)


def _best(work: Callable[[], None], seconds: float, before: Callable[[], None] = lambda: None) -> float:
    """The shortest of several runs that take about `seconds` in all; at least two, for the first is cold."""
    taken: list[float] = []
    while len(taken) < 2 or (sum(taken) + min(taken) < seconds and len(taken) < 9):
        before()
        begin = _now()
        work()
        taken.append(_now() - begin)
    return max(min(taken), 1e-9)


def _chunks(size: int, work: Callable[[int, int], int]) -> None:
    def whole(index: int) -> None:
        start, stop = chunk_span(index, size)
        while start < stop:
            done = work(start, stop)
            if done <= 0:
                raise OSError("the file ended too early")
            start += done

    side_by_side(whole, chunk_count(size), threads=_THREADS)


# ---- saves and restores


@dataclass(frozen=True)
class Costs:
    """Seconds, medians. `training_seconds` is what one save takes from training in all: the stall, and the
    steps that ran slower while it was being copied and written."""

    stall_seconds: float
    training_seconds: float
    durable_seconds: float
    restore_seconds: float


@dataclass(frozen=True, kw_only=True)
class BenchedSaves:
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
        self.model = nn.Sequential(*(nn.Linear(wide, wide) for _ in range(max(round(weights / wide**2), 1))))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._input = torch.ones(4, wide)
        self.step()

    def step(self, run: holdfast.Run | None = None) -> float:
        begin = _now()
        self.model(self._input).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if run is not None:
            run.end_step()
        return _now() - begin

    @property
    def state_bytes(self) -> int:
        moments = self.optimizer.state_dict()["state"].values()
        tensors = [*self.model.state_dict().values(), *(t for entry in moments for t in entry.values())]
        return sum(tensor.nbytes for tensor in tensors)


def measure_saves(folder: Path, size: int, seconds: float, tell: Callable[[str], None]) -> BenchedSaves:
    """Train, save and restore in `folder` for about that long."""
    began = _now()
    training = Training(size)
    tracked: dict[str, Any] = {"model": training.model, "optimizer": training.optimizer}
    ours: list[tuple[float, float, float]] = []
    theirs: list[float] = []
    with holdfast.Run(folder / "run", every="1000000000 steps", **tracked) as run:
        usual = statistics.median(training.step(run) for _ in range(5))
        # The first save plans and allocates; it is not what the thousandth one costs.
        _one_save(training, run, usual)
        while len(ours) < _MOST_ROUNDS:
            if run.stopping:
                # A run takes Ctrl-C for a wish to stop after a checkpoint; here there is nothing to keep.
                raise KeyboardInterrupt
            tell(f"saving, round {len(ours) + 1}")
            ours.append(_one_save(training, run, usual))
            theirs.append(_torch_save(training, folder / "plain.pt"))
            spent = _now() - began
            # A restore of each is still to come and takes about as long as a round.
            if spent + 2 * spent / (len(ours) + 1) > seconds:
                break
    tell("restoring")
    load_plain = _torch_load(training, folder / "plain.pt")
    load_ours = holdfast.restore(folder / "run", into=tracked).seconds
    stall, cost, durable = (statistics.median(values) for values in zip(*ours, strict=True))
    plain = statistics.median(theirs)
    return BenchedSaves(
        holdfast=Costs(stall, max(cost, stall), durable, load_ours),
        torch_save=Costs(plain, plain, plain, load_plain),
        step_seconds=usual,
        state_bytes=training.state_bytes,
        rounds=len(ours),
    )


def _one_save(training: Training, run: holdfast.Run, usual: float) -> tuple[float, float, float]:
    """Stall, training time lost in all, and time until durable, of one save with training going on."""
    begin = _now()
    handle = run._require_open().saves.now("bench", by_name=False)
    lost = _now() - begin
    while not handle.done:
        lost += training.step(run) - usual
        if _now() - begin > _PATIENCE_SECONDS:
            raise SaveError(
                f"one save is not durable after {_PATIENCE_SECONDS:.0f} s", hint="use a smaller --size"
            )
    handle.wait()
    return handle.stall_seconds, max(lost, 0.0), handle.persist_seconds + handle.stall_seconds


def _torch_save(training: Training, path: Path) -> float:
    """As careful as plain torch.save can be made: a new name, fsync, rename, fsync of the folder."""
    part = path.with_suffix(".part")
    with store_errors("write with torch.save", str(path.parent)):
        begin = _now()
        with open(part, "wb") as file:
            state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)
        return _now() - begin


def _torch_load(training: Training, path: Path) -> float:
    # From the disk and not from memory, as after a real restart; holdfast reads past the cache anyway.
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    begin = _now()
    state = torch.load(path, weights_only=True)
    training.model.load_state_dict(state["model"])
    training.optimizer.load_state_dict(state["optimizer"])
    return _now() - begin
