"""A small training whose result is bits: dropout, shuffling, momentum, a scheduler, validation each epoch.

`at(place)` is called at the named places of every step, so that a test can make things happen there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import holdfast

PLACES = ("data", "forward", "backward", "optimizer", "boundary", "validation", "epoch")
EPOCHS = 3
STEPS_PER_EPOCH = 8


class Samples(TensorDataset):
    def __init__(self, at: Callable[[str], None]) -> None:
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(STEPS_PER_EPOCH * 4, 6, generator=generator)
        super().__init__(inputs, inputs.sum(1, keepdim=True))
        self._at = at

    def __getitem__(self, index: Any) -> Any:
        self._at("data")
        return super().__getitem__(index)


def train(
    folder: Path,
    at: Callable[[str], None] = lambda place: None,
    *,
    epochs: int = EPOCHS,
    workers: int = 0,
    hooks: Callable[[holdfast.Run], None] = lambda run: None,
    **settings: Any,
) -> str:
    """Trains to the end, or leaves by SystemExit. Returns a digest of everything that was trained."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    loader = DataLoader(Samples(at), batch_size=4, shuffle=True, num_workers=workers)
    held_out = DataLoader(TensorDataset(*Samples(at).tensors), batch_size=8)
    # Called inside of the library's own optimizer step.
    optimizer.register_step_post_hook(lambda *_: at("optimizer"))
    tracked = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    with holdfast.Run(folder, **{"every": "5 steps", **settings}, **tracked) as run:
        hooks(run)
        for _ in run.epochs(epochs):
            model.train()
            for inputs, targets in run.batches(loader):
                loss = ((model(inputs) - targets) ** 2).mean()
                at("forward")
                loss.backward()
                at("backward")
                optimizer.step()
                optimizer.zero_grad()
                run.end_step(loss=loss)
                at("boundary")
            model.eval()
            total = 0.0
            with torch.no_grad():
                for inputs, targets in run.batches(held_out, whole_passes=True):
                    total += float(((model(inputs) - targets) ** 2).sum())
                    at("validation")
            scheduler.step(total)
            at("epoch")
    return digest(model, optimizer, scheduler)


def digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> str:
    bits = hashlib.sha256()
    for tensor in model.state_dict().values():
        bits.update(tensor.numpy().tobytes())
    for state in optimizer.state_dict()["state"].values():
        bits.update(state["momentum_buffer"].numpy().tobytes())
    bits.update(repr(sorted(scheduler.state_dict().items())).encode())
    bits.update(torch.get_rng_state().numpy().tobytes())
    return bits.hexdigest()
