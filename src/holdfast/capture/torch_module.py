"""A module's state under names that do not depend on how it was wrapped."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from operator import is_
from typing import Any

import torch
from torch import nn

from holdfast.capture.torch_shards import is_sharded
from holdfast.errors import IncompatibleState

# Names that wrappers put in the middle of a key: torch.compile, activation checkpointing, FSDP.
_WRAPPER_PARTS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


def unwrap(module: nn.Module) -> nn.Module:
    """The user's own module behind DistributedDataParallel, DataParallel and torch.compile."""
    while True:
        if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            module = module.module
        elif isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
            module = inner
        else:
            return module


def _data_parallel(module: nn.Module) -> tuple[nn.parallel.DistributedDataParallel, ...]:
    """Every DistributedDataParallel in it: around the whole of it, or around parts."""
    return tuple(m for m in module.modules() if isinstance(m, nn.parallel.DistributedDataParallel))


def canonical(key: str) -> str:
    for part in _WRAPPER_PARTS:
        key = key.replace(part, "")
    return key


def _canonical_part(name: str) -> str:
    """Of a module, where `canonical` is of what it holds."""
    return canonical(f"{name}.")[:-1]


class TrackedModule:
    """Model, EMA copy, anything that is an nn.Module."""

    role = "weights"

    def __init__(self, key: str, module: nn.Module, *, save_frozen: bool = True) -> None:
        self.key = key
        self.module = unwrap(module)
        # They keep parameters the same on the ranks of their groups after every step.
        self.data_parallel = _data_parallel(module)
        self.save_frozen = save_frozen

    def take(self) -> dict[str, Any]:
        # keep_vars gives the parameters themselves, so their version counters can be watched.
        state = self.module.state_dict(keep_vars=True)
        skipped = self._frozen_names()
        named = ((canonical(k), v) for k, v in state.items())
        taken: Any = OrderedDict((k, v) for k, v in named if k not in skipped)
        if (notes := getattr(state, "_metadata", None)) is not None:
            # The inner one of a wrapper and what it wraps has the last word: it is the user's own.
            taken._metadata = {_canonical_part(part): said for part, said in notes.items()}
        return taken  # type: ignore[no-any-return]

    def hold(self) -> Callable[[], dict[str, Any]]:
        """Take it later, before the next optimizer step: its structure does not change meanwhile."""
        return self.take

    def watch(self) -> Callable[[], bool]:
        """Asked at a boundary: are its modules still those of now, and its first parameter, which stands for
        all that `load_state_dict(assign=True)` replaces? One parameter or buffer that is replaced alone is
        found behind training, where everything is walked."""
        parts = list(self.module.modules())
        first: dict[str, Any] = next((part._parameters for part in parts if part._parameters), {})
        everything: list[dict[str, Any]] = [first, *(part._modules for part in parts)]
        tables = [(table, list(table.values())) for table in everything if table]

        def is_same() -> bool:
            return all(len(table) == len(was) and all(map(is_, table.values(), was)) for table, was in tables)

        return is_same

    def places_of_tensors(self) -> dict[int, tuple[dict[str, Any], str]] | None:
        """Where each tensor hangs, by its id, so that it can be fetched without a walk.

        None where `state_dict` is more than torch's own: hooks and extra state are the user's code and are
        only ever run on the training thread.
        """
        places: dict[int, tuple[dict[str, Any], str]] = {}
        for part in self.module.modules():
            kind = type(part)
            if (
                kind.state_dict is not nn.Module.state_dict
                or kind._save_to_state_dict is not nn.Module._save_to_state_dict
                or kind.get_extra_state is not nn.Module.get_extra_state
                or part._state_dict_hooks
                or part._state_dict_pre_hooks
            ):
                return None
            if any(map(is_sharded, part._parameters.values())):
                # FSDP puts the gathered parameter in this place during a forward pass.
                return None
            for holder in (part._parameters, part._buffers):
                places.update({id(t): (holder, name) for name, t in holder.items() if t is not None})
        return places

    def parameter_names(self) -> dict[int, str]:
        named = self.module.named_parameters(remove_duplicate=False)
        return {id(p): f"{self.key}.{canonical(name)}" for name, p in named}

    def _frozen_names(self) -> set[str]:
        if self.save_frozen:
            return set()
        named = self.module.named_parameters(remove_duplicate=False)
        return {canonical(name) for name, p in named if not p.requires_grad}

    def check(self, state: Any) -> None:
        """Raise IncompatibleState, naming the keys, before anything is touched."""
        live = self.take()
        skipped = self._frozen_names()
        stored = {k: v for k, v in state.items() if k not in skipped}
        problems = [f"missing {k!r}" for k in live if k not in stored]
        problems += [f"unexpected {k!r}" for k in stored if k not in live]
        for name, value in stored.items():
            mine = live.get(name)
            if not isinstance(value, torch.Tensor) or not isinstance(mine, torch.Tensor):
                continue
            if mine.shape != value.shape:
                problems.append(
                    f"{name!r} is {list(value.shape)} in the checkpoint and {list(mine.shape)} here"
                )
            elif mine.dtype != value.dtype:
                problems.append(f"{name!r} is {value.dtype} in the checkpoint and {mine.dtype} here")
        if problems:
            raise IncompatibleState(
                f"checkpoint does not fit {self.key!r}: {_some(problems)}",
                hint="build the same model as when it was saved, or start in a new folder",
            )

    def apply(self, state: Any) -> None:
        live = self.module.state_dict(keep_vars=True)
        live_names = {canonical(k): k for k in live}
        missing = self._frozen_names()
        found: Any = OrderedDict(
            (live_names[name], value) for name, value in state.items() if name in live_names
        )
        # Modules look here for the version that they were saved with, and may refuse a state without one.
        if (notes := getattr(state, "_metadata", None)) is not None:
            parts = {part: _canonical_part(part) for part in getattr(live, "_metadata", ())}
            found._metadata = OrderedDict((part, notes[c]) for part, c in parts.items() if c in notes)
        result = self.module.load_state_dict(found, strict=False)
        unloaded = {canonical(k) for k in result.missing_keys} - missing
        if unloaded or result.unexpected_keys:
            raise IncompatibleState(
                f"{self.key!r} refused {_some([*sorted(unloaded), *result.unexpected_keys])}"
            )


def _some(items: list[str], limit: int = 5) -> str:
    return "; ".join(items[:limit]) + (f"; and {len(items) - limit} more" if len(items) > limit else "")
