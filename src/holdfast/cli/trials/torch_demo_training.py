"""The training that `holdfast demo` shows, as the child process it can kill: one loop, three ways to save.

Speaks JSON lines on standard output and waits for its turn on standard input, so that the ways can be timed
one against the other without sharing the machine. Deterministic: every way computes the same weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import nullcontext
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
_now = SystemClock().monotonic


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


class Example:
    """Handwritten digits, a small network, AdamW; the loader that any script would write."""

    def __init__(self) -> None:
        with np.load(Path(__file__).parent / "data" / "digits.npz", allow_pickle=False) as stored:
            images = torch.tensor(stored["images"], dtype=torch.float32).reshape(-1, 64) / 16
            labels = torch.tensor(stored["labels"], dtype=torch.int64)
        self._unseen = images[-HELD_OUT:], labels[-HELD_OUT:]
        self.data = TensorDataset(images[:-HELD_OUT], labels[:-HELD_OUT])
        self.build()

    def build(self) -> None:
        torch.manual_seed(SEED)
        self.model = nn.Sequential(
            nn.Linear(64, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(HIDDEN, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(HIDDEN, 10),
        )  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.loader: DataLoader[Any] = DataLoader(self.data, batch_size=BATCH, shuffle=True)

    def learn(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = functional.cross_entropy(self.model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def step_seconds(self) -> float:
        """How long a step takes here; what it has learnt is thrown away."""
        taken = []
        for (x, y), _ in zip(self.loader, range(8), strict=False):
            begin = _now()
            self.learn(x, y)
            taken.append(_now() - begin)
        self.build()
        return sorted(taken)[len(taken) // 2]

    def fingerprint(self) -> str:
        """SHA-256 over every tensor of model and optimizer, names included."""
        summed = hashlib.sha256()
        moments = self.optimizer.state_dict()["state"]
        inside = ((f"{i}.{k}", v) for i, s in moments.items() for k, v in s.items())
        for name, value in (*self.model.state_dict().items(), *inside):
            summed.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            summed.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return summed.hexdigest()

    def accuracy(self) -> float:
        images, labels = self._unseen
        self.model.eval()
        with torch.inference_mode():
            return float((self.model(images).argmax(1) == labels).float().mean())

    def torch_save(self, folder: str, step: int) -> float:
        """As most scripts do it: a temporary name, then a rename."""
        begin = _now()
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step}
        torch.save(state, f"{folder}/checkpoint.pt.part")
        os.replace(f"{folder}/checkpoint.pt.part", f"{folder}/checkpoint.pt")
        return _now() - begin


def train(example: Example, given: dict[str, Any]) -> dict[str, Any]:
    """Train in the given way. Seconds of waiting for a turn are not counted."""
    folder, every, epochs, turn = given["folder"], given["every"], given["epochs"], given["turn"]
    tracked: dict[str, Any] = {"model": example.model, "optimizer": example.optimizer}
    ours = given["way"] == "holdfast"
    started, waited, step = _now(), 0.0, 0
    stalls: list[float] = []
    with holdfast.Run(folder, every=f"{every} steps", **tracked) if ours else nullcontext() as run:
        if run is not None and run.resumed is not None:
            tell(event="resumed", step=run.resumed.step, seconds=run.resumed.seconds)
        for _ in run.epochs(epochs) if run is not None else range(epochs):
            for x, y in run.batches(example.loader) if run is not None else example.loader:
                loss = example.learn(x, y)
                step += 1
                if run is not None:
                    run.end_step(loss=loss)
                    step = run.step
                elif given["way"] == "torch.save" and step % every == 0:
                    stalls.append(example.torch_save(folder, step))
                tell(event="step", step=step, seconds=_now() - started - waited, loss=round(loss.item(), 4))
                if turn and step % turn == every // 2:
                    # Half-way between two saves, when the background has finished the one before.
                    tell(event="waiting")
                    begin = _now()
                    listen()
                    waited += _now() - begin
    if given["way"] == "torch.save":
        stalls.append(example.torch_save(folder, step))
    return {"seconds": _now() - started - waited, "stalls": stalls}


def main() -> None:
    torch.use_deterministic_algorithms(True)
    # One thread: more of them wait for each other on a busy machine, and the picture would show only that.
    torch.set_num_threads(1)
    example = Example()
    tell(event="ready", samples=len(example.data), threads=torch.get_num_threads(), torch=torch.__version__)
    while (given := listen()).get("calibrate"):
        tell(event="calibrated", step_seconds=example.step_seconds())
    facts = train(example, given)
    parameters = sum(p.numel() for p in example.model.parameters())
    tell(event="done", **facts, fingerprint=example.fingerprint(), parameters=parameters,
         accuracy=example.accuracy())  # fmt: skip


if __name__ == "__main__":
    main()
