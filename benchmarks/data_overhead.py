"""What it costs to take batches through holdfast instead of from the bare DataLoader, per batch.

Short epochs of both in turn, either first as often as the other, so that whatever else the machine does falls
on both. An epoch includes the start and the end of its workers. Wall time is what training
feels; CPU time, workers included, is what is spent, and hardly depends on who else is there.
"""

from __future__ import annotations

import resource
import statistics
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from holdfast.data.torch_feed import Feed
from options import Options, parse_options
from scoreboard import Scoreboard

BATCH = 64


class Images(Dataset[tuple[torch.Tensor, int]]):
    """What a real dataset does: decompress an image (as PNG does), crop, flip, normalise."""

    def __init__(self, size: int) -> None:
        self._size = size
        smooth = np.random.RandomState(0).randint(0, 32, (64, 3, 128, 128), dtype=np.uint8).cumsum(3)
        self._files = [zlib.compress((pixels // 16).astype(np.uint8).tobytes()) for pixels in smooth]

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        raw = bytearray(zlib.decompress(self._files[index % 64]))
        image = torch.frombuffer(raw, dtype=torch.uint8).view(3, 128, 128).float().div_(255)
        top, left = (int(i) for i in torch.randint(0, 17, (2,)))
        image = image[:, top : top + 112, left : left + 112]
        if torch.rand(()) < 0.5:  # torchvision's transforms draw from torch as well
            image = image.flip(2)
        return (image - 0.5) / 0.25, index % 10


class Trivial(Dataset[torch.Tensor]):
    """A small tensor by its index: about the cheapest dataset that anybody trains on."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._tensors = torch.zeros(1000, 3, 32, 32)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._tensors[index % 1000]


@dataclass(frozen=True)
class Cost:
    wall: float
    cpu: float


def cost_per_batch(epoch: Callable[[], Iterator[Any]]) -> Cost:
    """Of one epoch, from its first request until its workers have gone."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    count = sum(1 for _ in epoch())
    return Cost((time.perf_counter() - wall) / count, (cpu_seconds() - cpu) / count)


def cpu_seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def measure(dataset: Dataset[Any], workers: int, epochs: int) -> tuple[list[Cost], list[Cost]]:
    def loader() -> DataLoader[Any]:
        return DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers, drop_last=True)

    bare_loader = loader()
    feed = Feed(loader(), name="train", seed=None)
    bare: list[Cost] = []
    ours: list[Cost] = []
    for number in range(epochs + 1):
        turns: list[tuple[list[Cost], Callable[[], Iterator[Any]]]] = [
            (bare, lambda: iter(bare_loader)),
            (ours, lambda number=number: feed.batches(number)),
        ]
        for costs, epoch in turns if number % 2 else reversed(turns):
            costs.append(cost_per_batch(epoch))
    return bare[1:], ours[1:]  # the first pair warms up


def main() -> None:
    options: Options = parse_options(__doc__, repeats=24)
    torch.set_num_threads(1)
    board = Scoreboard(
        "data_overhead", f"Overhead per batch of {BATCH}, against the bare DataLoader", options
    )
    for name, kind, batches, limit in (("trivial", Trivial, 600, 1.03), ("images", Images, 40, 1.03)):
        for workers in (0, 2):
            bare, ours = measure(kind(BATCH * batches), workers, options.repeats)
            for what, of in (("time", lambda c: c.wall), ("CPU", lambda c: c.cpu)):
                metric = f"{name}, {workers} workers: {what}"
                board.add("bare DataLoader", metric, "s", [of(c) for c in bare])
                board.add("holdfast", metric, "s", [of(c) for c in ours])
                ratio = statistics.median(of(b) / of(a) for a, b in zip(bare, ours, strict=True))
                board.at_most(f"{metric}, holdfast ÷ bare", ratio, limit)
    board.finish()


if __name__ == "__main__":
    main()
