"""The training that `holdfast demo` shows, as the child process it can kill: one loop, three ways to save.

Speaks JSON lines on standard output and waits for its turn on standard input, so that the ways can be timed
one against the other without sharing the machine. Deterministic: every way computes the same weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import holdfast
from holdfast.clock import SystemClock

BATCH, HIDDEN, SEED, HELD_OUT = 32, 2048, 7, 297
_CLOCK = SystemClock()


class Pace:
    """Tells the parent about every step, and stands still at the end of a turn. Waiting is not counted."""

    def __init__(self, turn: int, offset: int) -> None:
        self._turn = turn
        self._offset = offset
        self._waited = 0.0
        self._started = _CLOCK.monotonic()

    @property
    def seconds(self) -> float:
        return _CLOCK.monotonic() - self._started - self._waited

    def step(self, number: int, loss: torch.Tensor) -> None:
        tell(event="step", step=number, seconds=self.seconds, loss=round(loss.item(), 4))
        if self._turn and number % self._turn == self._offset:
            tell(event="waiting")
            begin = _CLOCK.monotonic()
            listen()
            self._waited += _CLOCK.monotonic() - begin


def tell(**said: Any) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def listen() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        # The parent is gone, and nobody else will ever say "go".
        os._exit(1)
    heard: dict[str, Any] = json.loads(line)
    return heard


def digits() -> tuple[TensorDataset, torch.Tensor, torch.Tensor]:
    """Training set, and images and labels that it does not contain."""
    with np.load(Path(__file__).parent / "data" / "digits.npz", allow_pickle=False) as stored:
        images = torch.tensor(stored["images"], dtype=torch.float32).reshape(-1, 64) / 16
        labels = torch.tensor(stored["labels"], dtype=torch.int64)
    return TensorDataset(images[:-HELD_OUT], labels[:-HELD_OUT]), images[-HELD_OUT:], labels[-HELD_OUT:]


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(SEED)
    model = nn.Sequential(
        nn.Linear(64, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(HIDDEN, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(HIDDEN, 10),
    )  # fmt: skip
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def learn(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    loss: torch.Tensor = functional.cross_entropy(model(x), y)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def loader_of(data: TensorDataset) -> DataLoader[Any]:
    """The loader that any script would write; every way draws its order from torch's own stream."""
    return DataLoader(data, batch_size=BATCH, shuffle=True)


def train_plainly(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: TensorDataset, given: dict[str, Any], pace: Pace
) -> dict[str, Any]:
    """Without checkpoints, or with torch.save as most scripts use it: a temporary name, then a rename."""
    step = 0
    stalls: list[float] = []

    def save(epoch: int) -> None:
        begin = _CLOCK.monotonic()
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch,
            "step": step,
        }
        torch.save(state, given["folder"] + "/checkpoint.pt.part")
        os.replace(given["folder"] + "/checkpoint.pt.part", given["folder"] + "/checkpoint.pt")
        stalls.append(_CLOCK.monotonic() - begin)

    saving, loader = given["way"] == "torch.save", loader_of(data)
    for epoch in range(given["epochs"]):
        for x, y in loader:
            loss = learn(model, optimizer, x, y)
            step += 1
            if saving and step % given["every"] == 0:
                save(epoch)
            pace.step(step, loss)
    if saving:
        save(given["epochs"])
    return {"stalls": stalls}


def train_with_holdfast(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: TensorDataset, given: dict[str, Any], pace: Pace
) -> dict[str, Any]:
    loader = loader_of(data)
    every = f"{given['every']} steps"
    with holdfast.Run(given["folder"], every=every, model=model, optimizer=optimizer) as run:
        if run.resumed is not None:
            tell(event="resumed", step=run.resumed.step, seconds=run.resumed.seconds, bytes=run.resumed.bytes)
        for _ in run.epochs(given["epochs"]):
            for x, y in run.batches(loader):
                loss = learn(model, optimizer, x, y)
                run.end_step(loss=loss)
                pace.step(run.step, loss)
    return {}


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """SHA-256 over every tensor of model and optimizer, names included."""
    summed = hashlib.sha256()
    moments = optimizer.state_dict()["state"]
    named = [
        *model.state_dict().items(),
        *((f"{i}.{k}", v) for i, s in moments.items() for k, v in s.items()),
    ]
    for name, value in named:
        summed.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        summed.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return summed.hexdigest()


def step_seconds(data: TensorDataset) -> float:
    """How long a step takes here, on a model that is thrown away."""
    model, optimizer = build()
    taken = []
    for x, y in loader_of(data):
        begin = _CLOCK.monotonic()
        learn(model, optimizer, x, y)
        taken.append(_CLOCK.monotonic() - begin)
        if len(taken) == 8:
            break
    return sorted(taken)[len(taken) // 2]


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    model.eval()
    with torch.inference_mode():
        return float((model(images).argmax(1) == labels).float().mean())


def main() -> None:
    torch.use_deterministic_algorithms(True)
    # One thread: more of them wait for each other on a busy machine, and the picture would show only that.
    torch.set_num_threads(1)
    data, images, labels = digits()
    tell(event="ready", samples=len(data), threads=torch.get_num_threads(), torch=torch.__version__)
    given = listen()
    while given.get("calibrate"):
        tell(event="calibrated", step_seconds=step_seconds(data))
        given = listen()
    model, optimizer = build()
    pace = Pace(given["turn"], given["offset"])
    train = train_with_holdfast if given["way"] == "holdfast" else train_plainly
    facts = train(model, optimizer, data, given, pace)
    seconds = pace.seconds
    parameters = sum(p.numel() for p in model.parameters())
    tell(event="done", seconds=seconds, fingerprint=fingerprint(model, optimizer), parameters=parameters,
         accuracy=accuracy(model, images, labels), **facts)  # fmt: skip


if __name__ == "__main__":
    main()
