"""The order that a user's own sampler gives, made repeatable by remembering what it draws from.

The sampler is asked for indices only; no sample is loaded to get back to a position.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from holdfast.data.seeding import FOR_SAMPLER, derive
from holdfast.data.torch_streams import STREAMS, TORCH, OwnStreams
from holdfast.errors import IncompatibleState

_NESTED_LIMIT = 8


def remember(sampler: Any, loader_generator: torch.Generator | None) -> dict[str, Any]:
    """Everything that decides the sampler's next pass: its own state, or the generators it holds."""
    if hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict"):
        return {"state": sampler.state_dict()}
    found = _generators(sampler, loader_generator)
    return {"generators": {path: _generator_state(g) for path, g in found.items()}} if found else {}


def put_back(sampler: Any, kept: dict[str, Any], loader_generator: torch.Generator | None) -> None:
    """Bring the sampler to where `remember` saw it."""
    if "state" in kept:
        if not hasattr(sampler, "load_state_dict"):
            raise IncompatibleState(
                f"the data position holds the state of a sampler, and {type(sampler).__name__} takes none",
                hint="use the sampler that the run was saved with until the epoch has ended",
            )
        sampler.load_state_dict(kept["state"])
        return
    present = _generators(sampler, loader_generator)
    wanted = kept.get("generators", {})
    if set(wanted) != set(present):
        raise IncompatibleState(
            f"the sampler drew from {sorted(wanted) or 'no generator of its own'} when it was saved and "
            f"draws from {sorted(present) or 'no generator of its own'} now",
            hint="build the sampler as it was built when the run was saved, until the epoch has ended",
        )
    for path, generator in present.items():
        _set_generator_state(generator, wanted[path])


class SamplerPass:
    """One pass over a sampler, read in parts. What it draws from the default generators is drawn from streams
    of its own, a function of (seed, epoch), so that training's generators do not notice."""

    def __init__(self, sampler: Any, seed: int, epoch: int) -> None:
        self._sampler = sampler
        self._epoch = epoch
        self._items: Iterator[Any] | None = None
        # torch's own samplers draw from torch alone; exchanging the other two costs 50 µs per batch.
        streams = (TORCH,) if _is_torchs_own(sampler) else STREAMS
        self._streams = OwnStreams(derive(FOR_SAMPLER, seed, epoch), streams)

    def take(self, count: int) -> list[Any]:
        """The next `count` items, or fewer at the end."""
        return self._streams.run(lambda: self._take(count))

    def _take(self, count: int) -> list[Any]:
        if self._items is None:
            if hasattr(self._sampler, "set_epoch"):
                self._sampler.set_epoch(self._epoch)
            self._items = iter(self._sampler)
        return list(islice(self._items, count))


def _is_torchs_own(sampler: Any) -> bool:
    inner = getattr(sampler, "sampler", None)
    return type(sampler).__module__ in ("torch.utils.data.sampler", "torch.utils.data.distributed") and (
        inner is None or _is_torchs_own(inner)
    )


def _generators(sampler: Any, loader_generator: torch.Generator | None) -> dict[str, Any]:
    """Each generator once, by where it was found: DataLoader(generator=g) gives its sampler the same g."""
    found: dict[str, Any] = {}
    for path, generator in _held_by(sampler):
        if all(generator is not other for other in found.values()):
            found[path] = generator
    if loader_generator is not None and all(loader_generator is not other for other in found.values()):
        found["the loader"] = loader_generator
    return found


def _held_by(sampler: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The generators among the attributes of a sampler and of the samplers inside it."""
    if depth > _NESTED_LIMIT or not hasattr(sampler, "__dict__"):
        return
    for name, value in sorted(vars(sampler).items()):
        path = f"{prefix}{name}"
        if isinstance(value, (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)):
            yield path, value
        elif isinstance(value, Sampler):
            yield from _held_by(value, f"{path}.", depth + 1)


def _generator_state(generator: Any) -> Any:
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


def _set_generator_state(generator: Any, state: Any) -> None:
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
