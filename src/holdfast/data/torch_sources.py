"""Chooses how a loader's position is kept, by what the loader can do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from holdfast.data.positioned import Positioned
from holdfast.data.source import Source
from holdfast.data.torch_as_torch import AsTorch
from holdfast.data.torch_foreign import OpenedAtPosition, ReadAgain, WithOwnState
from holdfast.data.torch_iterable import IterableStyle
from holdfast.data.torch_map_style import MapStyle
from holdfast.errors import SetupError


def source_of(loader: Any, *, seed_samples: bool, rank: int, world: int, as_torch: bool = False) -> Source:
    """The best way to take a position in `loader`; SetupError for what is no loader at all. `as_torch`
    reads it as torch does, on training's own generators."""
    if isinstance(loader, Positioned):
        return OpenedAtPosition(loader)
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return WithOwnState(loader, hidden=not as_torch)
    if isinstance(loader, DataLoader) and _iterates_as_torch(loader):
        if isinstance(loader.dataset, IterableDataset):
            return IterableStyle(loader, seed_samples=seed_samples, world=world, as_torch=as_torch)
        if as_torch:
            return AsTorch(loader, world=world)
        return MapStyle(loader, seed_samples=seed_samples, rank=rank, world=world)
    if isinstance(loader, Iterable):
        return ReadAgain(loader, seed_samples=seed_samples, as_torch=as_torch)
    raise SetupError(
        f"{type(loader).__name__} is not something that batches can be taken from",
        hint="give a DataLoader, an iterable of batches, or holdfast.data.Positioned",
    )


def _iterates_as_torch(loader: DataLoader[Any]) -> bool:
    """A subclass that iterates in its own way (PyG's filter behind the workers) cannot be rebuilt, only
    read."""
    kind = type(loader)
    return kind.__iter__ is DataLoader.__iter__ and kind._get_iterator is DataLoader._get_iterator
