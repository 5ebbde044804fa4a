"""Real training for the command line to look at, and ways to damage what it left."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import holdfast

STEPS = (5, 10, 15, 20)


class TiedModel(nn.Module):
    """Tied weights, a bfloat16 parameter, BatchNorm buffers: what a real model brings along."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 6, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.shift = nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.bfloat16))
        self.head = nn.Linear(6, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.norm(self.embed(x)) + self.shift.float())
        return out


def train(path: Path, steps: tuple[int, ...] = STEPS, *, seed: int = 0, **settings: Any) -> None:
    """Train up to the last of `steps`, saving exactly there."""
    torch.manual_seed(seed)
    model = TiedModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    every = {"every": "1000000 steps", "keep": 100, **settings}
    with holdfast.Run(path, model=model, optimizer=optimizer, **every) as run:
        run.extras["note"] = "first"
        for step in run.steps(steps[-1]):
            loss = model(torch.randn(8, 6)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.end_step(loss=loss, accuracy=step / 100)
            if step + 1 in steps:
                run.extras["note"] = f"step {step + 1}"
                keep = "best so far" if step + 1 == 10 else None
                run.save_now("asked by the test", keep=keep, notes="a note").wait()


def flip(file: Path, at: int = -5) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0xFF
    file.write_bytes(data)


def break_manifest(checkpoint: Path) -> None:
    for name in ("MANIFEST", "MANIFEST.2"):
        flip(checkpoint / name, 40)


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)
