"""Chooses how a loader's position is kept, by what the loader can do."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from holdfast.data.source import Source
from holdfast.data.torch_map_style import MapStyle
from holdfast.errors import SetupError


def source_of(loader: Any, *, seed_samples: bool, rank: int, world: int) -> Source:
    """The best way to take a position in `loader`; SetupError for what is no loader at all."""
    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        return MapStyle(loader, seed_samples=seed_samples, rank=rank, world=world)
    raise SetupError(f"{type(loader).__name__} is not something that batches can be taken from")
