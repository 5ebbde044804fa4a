"""Datasets whose samples show which index and which random numbers they were made of."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset


class Noisy(Dataset[torch.Tensor]):
    """Sample i is (i, a number from each of the three default generators)."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = [float(index), random.random(), float(np.random.randn()), float(torch.randn(()))]
        return torch.tensor(drawn, dtype=torch.float64)


class Quiet(Dataset[int]):
    """Sample i is i; no generator is touched. Counts how often it was asked in this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.loads = 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.loads += 1
        return index


def indices(batches: list[torch.Tensor]) -> list[list[int]]:
    return [[int(row[0]) for row in batch] for batch in batches]


def same(one: list[Any], other: list[Any]) -> bool:
    """Bit for bit."""
    return len(one) == len(other) and all(
        a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
        for a, b in zip(one, other, strict=True)
    )
