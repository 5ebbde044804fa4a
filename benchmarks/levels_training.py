"""The training of the multi-level experiments: data-parallel, a fixed dataset, one checkpoint per epoch.

Each rank is a node with an accelerator, which a pause stands for: while it computes, the host is free. What
the nodes here do on this machine's cores (a small forward and backward pass, the all-reduce, AdamW) is real.
As the dataset is fixed, an epoch gets shorter with every node, and a save of fixed length weighs more.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

WIDTH, CLASSES, BATCH = 1024, 10, 16


@dataclass(frozen=True)
class Size:
    """How much there is to train. A layer has 4.2 MB of weights, with AdamW's moments 12.6."""

    layers: int
    pause_seconds: float
    # In an epoch. N nodes do as many together.
    steps_of_one_node: int

    def steps_per_epoch(self, world: int) -> int:
        return max(self.steps_of_one_node // world, 1)

    @property
    def state_bytes(self) -> int:
        return 12 * (self.layers * (WIDTH + 1) * WIDTH + (WIDTH + 1) * CLASSES)


class Training:
    """The same on every rank, and for every way to save it; all randomness is seeded here."""

    def __init__(self, size: Size, rank: int, world: int) -> None:
        self._pause, self._rank, self._world = size.pause_seconds, rank, world
        self.steps_per_epoch = size.steps_per_epoch(world)
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for _ in range(size.layers):
            layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.1)]
        net = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))
        # Buckets that are never regrouped: a restarted process then sums in the order of one that went on,
        # also with more than two ranks. That is what the option does here; nothing is unused.
        self.model = nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        made = torch.Generator().manual_seed(1)
        samples = BATCH * max(size.steps_of_one_node, world)
        self._x = torch.randn(samples, WIDTH, generator=made)
        self._y = (self._x @ torch.randn(WIDTH, CLASSES, generator=made)).argmax(1)
        torch.manual_seed(2 + rank)  # for dropout: every rank has a stream of its own

    def step(self, number: int) -> Tensor:
        """One step of training; the loss of this rank."""
        epoch, within = divmod(number, self.steps_per_epoch)
        order = torch.randperm(len(self._x), generator=torch.Generator().manual_seed(epoch))
        mine = order[(within * self._world + self._rank) * BATCH :][:BATCH]
        loss = nn.functional.cross_entropy(self.model(self._x[mine]), self._y[mine])
        loss.backward()
        time.sleep(self._pause)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def state(self, next_step: int) -> dict[str, Any]:
        """What root checkpointing saves: rank 0's view, its random stream included."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "step": next_step,
        }

    def load(self, state: dict[str, Any]) -> int:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self._rank == 0:
            torch.set_rng_state(state["random"])
        return int(state["step"])


def mean_over_ranks(losses: list[Tensor]) -> float:
    """What a log shows for an epoch."""
    total = torch.stack(losses).mean()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def tiers_of(caches: str, world: int) -> list[str]:
    """Every save on the nodes, protected against a lost one; every tenth goes to the shared store."""
    protect = {1: "single", 2: "partner"}.get(world, "xor:4")
    return [caches, protect, "run every 10"]
