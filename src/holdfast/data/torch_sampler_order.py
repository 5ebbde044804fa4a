"""The order that a user's own sampler gives, made repeatable by remembering what it draws from.

The sampler is asked for indices only; no sample is loaded to get back to a position.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

from holdfast.data.torch_generators import generator_state, held_by_sampler, set_generator_state
from holdfast.data.torch_streams import STREAMS, TORCH, OwnStreams
from holdfast.errors import IncompatibleState

LOADERS = "the loader"
_ABSENT = object()


def remember(sampler: Any, loader_generator: torch.Generator | None) -> dict[str, Any]:
    """Everything that decides the sampler's next pass: its own state, or the generators it holds."""
    if hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict"):
        return {"state": sampler.state_dict()}
    found = generators(sampler, loader_generator)
    return {"generators": {path: generator_state(g) for path, g in found.items()}} if found else {}


def put_back(
    sampler: Any, kept: dict[str, Any], loader_generator: torch.Generator | None, *, is_same: bool = False
) -> None:
    """Bring the sampler to where `remember` saw it. `is_same`: it is the very object that was seen."""
    if "state" in kept:
        if not hasattr(sampler, "load_state_dict"):
            raise IncompatibleState(
                f"the data position holds the state of a sampler, and {type(sampler).__name__} takes none",
                hint="use the sampler that the run was saved with until the epoch has ended",
            )
        sampler.load_state_dict(kept["state"])
        return
    wanted = kept.get("generators", {})
    if is_same:
        # Samplers like Accelerate's make their generator in their first pass: then it was not there yet.
        for path in set(generators(sampler, loader_generator)) - set(wanted):
            set_at(sampler, path, None)
    make_missing(sampler, wanted)
    present = generators(sampler, loader_generator)
    if set(wanted) != set(present):
        raise IncompatibleState(
            f"the sampler drew from {sorted(wanted) or 'no generator of its own'} when it was saved and "
            f"draws from {sorted(present) or 'no generator of its own'} now",
            hint="build the sampler as it was built when the run was saved, until the epoch has ended",
        )
    for path, generator in present.items():
        set_generator_state(generator, wanted[path])


def make_missing(sampler: Any, wanted: dict[str, Any]) -> None:
    """Generators that the sampler will make in its first pass, and that the saved one had made."""
    for path, state in wanted.items():
        if isinstance(state, bytes) and path != LOADERS and get_at(sampler, path) is None:
            set_at(sampler, path, torch.Generator())


def get_at(sampler: Any, path: str) -> Any:
    for name in path.split("."):
        sampler = getattr(sampler, name, _ABSENT)
    return sampler


def set_at(sampler: Any, path: str, value: Any) -> None:
    *holders, name = path.split(".")
    for holder in holders:
        sampler = getattr(sampler, holder)
    setattr(sampler, name, value)


class SamplerPass:
    """One pass over a sampler, read in parts. What it draws from the default generators is drawn from streams
    of its own, which begin with `key`, so that training's generators do not notice."""

    def __init__(self, sampler: Any, key: int, epoch: int) -> None:
        self._sampler = sampler
        self._epoch = epoch
        self._items: Iterator[Any] | None = None
        # torch's own samplers draw from torch alone; exchanging the other two costs 50 µs per batch.
        streams = (TORCH,) if is_torchs_own(sampler) else STREAMS
        self._streams = OwnStreams(key, streams)

    def take(self, count: int) -> list[Any]:
        """The next `count` items, or fewer at the end."""
        return self._streams.run(lambda: self._take(count))

    def _take(self, count: int) -> list[Any]:
        if self._items is None:
            if hasattr(self._sampler, "set_epoch"):
                self._sampler.set_epoch(self._epoch)
            self._items = iter(self._sampler)
        return list(islice(self._items, count))


def is_torchs_own(sampler: Any) -> bool:
    inner = getattr(sampler, "sampler", None)
    return type(sampler).__module__ in ("torch.utils.data.sampler", "torch.utils.data.distributed") and (
        inner is None or is_torchs_own(inner)
    )


def generators(sampler: Any, loader_generator: torch.Generator | None) -> dict[str, Any]:
    """Each generator once, by where it was found: DataLoader(generator=g) gives its sampler the same g."""
    found: dict[str, Any] = {}
    for path, generator in held_by_sampler(sampler):
        if all(generator is not other for other in found.values()):
            found[path] = generator
    if loader_generator is not None and all(loader_generator is not other for other in found.values()):
        found[LOADERS] = loader_generator
    return found
