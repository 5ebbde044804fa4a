"""Small training loops whose every step can be compared bit for bit: BatchNorm, dropout, tied weights, a
scheduler, augmentation from three random streams. For tests of resuming; nothing here is worth training."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class TiedNet(nn.Module):
    """A model with every kind of state: parameters, a tied one, BatchNorm's buffers, dropout's randomness."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.encode = nn.Linear(6, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.3)
        self.mix = nn.Linear(width, width, bias=False)
        self.again = nn.Linear(width, width, bias=False)
        self.again.weight = self.mix.weight
        self.out = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.tanh(self.norm(self.encode(x))))
        result: torch.Tensor = self.out(self.again(torch.tanh(self.mix(hidden))))
        return result


class NoisySamples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that differ every time they are loaded, by Python's, NumPy's and torch's generators."""

    def __init__(self, count: int = 40) -> None:
        generator = torch.Generator().manual_seed(5)
        self._x = torch.randn(count, 6, generator=generator)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = random.random() + np.random.rand() + torch.rand(())
        x = self._x[index] + 0.1 * noise
        return x, x.sum().reshape(1)


@dataclass
class Objects:
    """Everything a script builds before it trains, always the same for a seed."""

    seed: int = 0
    width: int = 8
    model: TiedNet = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    scheduler: Any = field(init=False)
    loader: DataLoader[Any] = field(init=False)

    def __post_init__(self) -> None:
        random.seed(self.seed)
        np.random.seed(self.seed)
        torch.manual_seed(self.seed)
        self.model = TiedNet(self.width)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.02)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 50)
        self.loader = DataLoader(NoisySamples(), batch_size=8, shuffle=True)

    @property
    def tracked(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def train_on(self, batch: Any) -> torch.Tensor:
        """One step; its loss also depends on randomness that training itself draws from every stream."""
        x, y = batch
        # Out of the loop's own streams: what resuming must not disturb.
        jitter = random.random() * 1e-2 + float(np.random.rand()) * 1e-2
        loss = nn.functional.mse_loss(self.model(x + jitter * torch.rand_like(x)), y)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.scheduler.step()
        return loss.detach()

    def fingerprint(self) -> str:
        """A digest over every bit of model, optimizer, scheduler and random state."""
        digest = hashlib.sha256()
        _feed(digest, self.model.state_dict())
        _feed(digest, self.optimizer.state_dict())
        _feed(digest, self.scheduler.state_dict())
        _feed(digest, repr(random.getstate()))
        numpy_state: Any = np.random.get_state(legacy=False)
        words = numpy_state["state"]
        _feed(digest, [words["key"].tobytes(), words["pos"], numpy_state["has_gauss"], numpy_state["gauss"]])
        _feed(digest, torch.get_rng_state())
        return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        digest.update(str((value.dtype, tuple(value.shape))).encode())
        digest.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key, item in value.items():
            digest.update(repr(key).encode())
            _feed(digest, item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _feed(digest, item)
    else:
        digest.update(repr(value).encode())


def exact(loss: torch.Tensor) -> str:
    """A loss as text that loses no bit."""
    return float(loss).hex()
