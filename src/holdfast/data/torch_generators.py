"""Generators that an object of the user's holds: found by looking, read and put back without drawing."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

_NESTED_LIMIT = 8
_LOOKED_AT = 256  # objects at most: a dataset may hold a million
KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class GeneratorStream:
    """A generator of the user's own, with the verbs of the default ones."""

    def __init__(self, name: str, generator: Any) -> None:
        self.name = name
        self._generator = generator

    def mark(self) -> Any:
        return generator_state(self._generator)

    def moved(self, mark: Any) -> bool:
        return bool(self.mark() != mark)

    def restore(self, mark: Any) -> None:
        set_generator_state(self._generator, mark)

    def seed(self, seed: int) -> None:
        raise NotImplementedError("a user's own generator is never seeded by us")


def held_by_sampler(sampler: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The generators among the attributes of a sampler and of the samplers inside it."""
    if depth > _NESTED_LIMIT or not hasattr(sampler, "__dict__"):
        return
    for name, value in sorted(vars(sampler).items()):
        path = f"{prefix}{name}"
        if isinstance(value, KINDS):
            yield path, value
        elif isinstance(value, Sampler):
            yield from held_by_sampler(value, f"{path}.", depth + 1)


def held_by_dataset(dataset: Any) -> list[GeneratorStream]:
    """Those of a dataset, of its transforms and of what they hold. Looks at a few hundred objects, no
    more."""
    found: list[GeneratorStream] = []
    seen: set[int] = set()
    queue: list[tuple[str, Any, int]] = [("", dataset, 0)]
    while queue and len(seen) < _LOOKED_AT:
        path, thing, depth = queue.pop(0)
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, KINDS):
            found.append(GeneratorStream(path, thing))
        elif depth < _NESTED_LIMIT:
            queue += [(f"{path}.{name}", value, depth + 1) for name, value in _inside(thing)]
    return found


def _inside(thing: Any) -> list[tuple[str, Any]]:
    if isinstance(thing, (list, tuple)):
        # Transforms come in short lists; samples in long ones.
        return [(str(i), value) for i, value in enumerate(thing)] if len(thing) <= 32 else []
    if isinstance(thing, (type, torch.Tensor, np.ndarray)) or not hasattr(thing, "__dict__"):
        return []
    return sorted(vars(thing).items())


def generator_state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        _, words, gauss = generator.getstate()
        return {"words": struct.pack(f"<{len(words)}I", *words), "gauss": gauss}
    if isinstance(generator, np.random.RandomState):
        _, key, pos, has_gauss, gauss = generator.get_state()
        packed = np.asarray(key, dtype="<u4").tobytes()
        return {"key": packed, "pos": int(pos), "has_gauss": int(has_gauss), "gauss": float(gauss)}
    return _plain(generator.bit_generator.state)


def set_generator_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif isinstance(generator, random.Random):
        words = struct.unpack(f"<{len(state['words']) // 4}I", state["words"])
        generator.setstate((3, words, state["gauss"]))
    elif isinstance(generator, np.random.RandomState):
        key = np.frombuffer(state["key"], dtype="<u4")
        generator.set_state(("MT19937", key, state["pos"], state["has_gauss"], state["gauss"]))
    else:
        generator.bit_generator.state = _arrays(state)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "bytes": value.tobytes()}
    return value


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"dtype", "bytes"}:
            return np.frombuffer(value["bytes"], dtype=value["dtype"]).copy()
        return {k: _arrays(v) for k, v in value.items()}
    return value
