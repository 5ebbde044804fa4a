"""What decides a sampler's next pass, wherever it keeps it: generators, counters, lists, the default streams.

The sampler itself runs as it runs without holdfast, on training's own streams. It is read here and nothing
else; only after a restart is it brought back and its indices passed over, on streams that nobody else draws
from.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from holdfast.data.torch_generators import generator_state, set_generator_state
from holdfast.data.torch_sampler_order import (
    LOADERS,
    generators,
    get_at,
    is_torchs_own,
    make_missing,
    set_at,
)
from holdfast.data.torch_streams import STREAMS, TORCH, Stream
from holdfast.errors import IncompatibleState

_NUMBERS = (bool, int, float, str)
_PARTS = ("numbers", "generators")


class SamplerMemory:
    def __init__(self, sampler: Any, loader_generator: torch.Generator | None) -> None:
        self._sampler = sampler
        self._loader_generator = loader_generator
        self._is_torchs = is_torchs_own(sampler)
        # torch's own samplers draw from torch alone, and have nothing of their own that changes.
        self.streams: tuple[Stream, ...] = (TORCH,) if self._is_torchs else tuple(STREAMS)
        self._keeps_state = hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")

    def take(self) -> dict[str, Any]:
        """Small, and without drawing: called at every save."""
        kept: dict[str, Any] = {}
        found = generators(self._sampler, self._loader_generator)
        if self._keeps_state:
            kept["state"] = self._sampler.state_dict()
            found = {path: g for path, g in found.items() if path == LOADERS}
        elif not self._is_torchs and (numbers := dict(_plain_values(self._sampler))):
            kept["numbers"] = numbers
        if found:
            kept["generators"] = {path: generator_state(g) for path, g in found.items()}
        return kept

    def by_name(self) -> dict[str, Any]:
        """What `take` gives, part by part."""
        kept = self.take()
        parts = {f"{kind}.{path}": v for kind in _PARTS for path, v in kept.get(kind, {}).items()}
        return {**parts, "state": kept["state"]} if "state" in kept else parts

    @staticmethod
    def only(kept: dict[str, Any], names: set[str]) -> dict[str, Any]:
        """Of what `take` gave, the parts of these names."""
        some = {
            kind: {path: v for path, v in kept.get(kind, {}).items() if f"{kind}.{path}" in names}
            for kind in _PARTS
        }
        return {**some, "state": kept["state"]} if "state" in names else some

    def put_back(self, kept: dict[str, Any]) -> None:
        if "state" in kept:
            if not self._keeps_state:
                raise IncompatibleState(
                    "the data position holds the state of a sampler, and "
                    f"{type(self._sampler).__name__} takes none",
                    hint="use the sampler that the run was saved with until the epoch has ended",
                )
            self._sampler.load_state_dict(kept["state"])
        for path, value in kept.get("numbers", {}).items():
            if type(get_at(self._sampler, path)) in _NUMBERS and get_at(self._sampler, path) != value:
                set_at(self._sampler, path, value)
        wanted = kept.get("generators", {})
        make_missing(self._sampler, wanted)
        present = generators(self._sampler, self._loader_generator)
        if missing := sorted(set(wanted) - set(present)):
            raise IncompatibleState(
                f"the sampler drew from {missing} when it was saved and has no such generator now",
                hint="build the sampler as it was built when the run was saved, until the epoch has ended",
            )
        for path in wanted:
            set_generator_state(present[path], wanted[path])

    def lists(self) -> dict[str, Any]:
        """Copies of the lists and arrays that the sampler holds: it may shuffle them where they are."""
        return {} if self._is_torchs or self._keeps_state else dict(_own_lists(self._sampler))

    def changed(self, before: dict[str, Any]) -> dict[str, Any]:
        """Those of `before` that are not any more what they were."""
        now = self.lists()
        return {path: value for path, value in before.items() if not _equal(value, now.get(path))}

    def put_back_lists(self, kept: dict[str, Any]) -> None:
        for path, value in kept.items():
            holder = get_at(self._sampler, path)
            if isinstance(holder, list):
                holder[:] = value.tolist() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
            elif isinstance(holder, np.ndarray):
                holder[...] = value.numpy()
            elif isinstance(holder, torch.Tensor):
                holder.copy_(value)


class SamplerRun:
    """One pass over an index sampler, at the moments when torch begins and reads it.

    `note` is told, once, what a process that takes the pass up needs: the state before `iter` where that
    changed anything, the state before the first index, lists that were shuffled in between.
    """

    def __init__(self, giver: Any, memory: SamplerMemory, note: Callable[[dict[str, Any]], None]) -> None:
        self._giver = giver
        self._memory = memory
        self._note = note
        self._items: Iterator[Any] | None = None
        self._noted = False
        self._began: dict[str, Any] | None = None
        self._lists: dict[str, Any] = {}

    def begin(self) -> None:
        """As torch calls `iter` on a sampler."""
        before = self._seen()
        self._lists = self._memory.lists()
        self._items = iter(self._giver)
        self._began = before if not _equal(before, self._seen()) else None

    def take(self, count: int) -> list[Any]:
        """The next `count` items, or fewer at the end."""
        if self._items is None:
            self.begin()
        assert self._items is not None
        if self._noted:
            return list(islice(self._items, count))
        first = self._seen()
        taken = list(islice(self._items, count))
        self._noted = True
        self._note({"first": first, "began": self._began, "lists": self._memory.changed(self._lists)})
        self._lists = {}
        return taken

    def take_up(self, noted: dict[str, Any]) -> None:
        """Begin as the pass began that `noted` is of. The caller hides what is drawn."""
        self._memory.put_back_lists(noted["lists"])
        self._put_back(noted["began"] or noted["first"])
        self._items = iter(self._giver)
        self._put_back(noted["first"])
        self._noted = True

    def _seen(self) -> dict[str, Any]:
        marks = {stream.name: stream.mark() for stream in self._memory.streams}
        return {"streams": marks, "sampler": self._memory.take()}

    def _put_back(self, seen: dict[str, Any]) -> None:
        self._memory.put_back(seen["sampler"])
        for stream in self._memory.streams:
            stream.restore(seen["streams"][stream.name])


def _plain_values(sampler: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Counters and the like: an epoch that a sampler counts up by itself."""
    if depth > 4 or not hasattr(sampler, "__dict__"):
        return
    for name, value in sorted(vars(sampler).items()):
        if type(value) in _NUMBERS:
            yield f"{prefix}{name}", value
        elif isinstance(value, Sampler):
            yield from _plain_values(value, f"{prefix}{name}.", depth + 1)


def _own_lists(sampler: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if depth > 4 or not hasattr(sampler, "__dict__"):
        return
    for name, value in sorted(vars(sampler).items()):
        path = f"{prefix}{name}"
        if isinstance(value, Sampler):
            yield from _own_lists(value, f"{path}.", depth + 1)
        elif isinstance(value, torch.Tensor):
            yield path, value.clone()
        elif isinstance(value, np.ndarray) and value.dtype.kind in "iufb":
            yield path, torch.from_numpy(value.copy())
        elif isinstance(value, list) and value and all(type(v) is int for v in value):
            yield path, torch.tensor(value)
        elif isinstance(value, list) and value and all(isinstance(v, (list, tuple)) for v in value):
            yield path, copy.deepcopy(value)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and bool(torch.equal(one, other))
    try:
        return bool(one == other)
    except (RuntimeError, ValueError):  # a state_dict with arrays in it: then it counts as changed
        return False
