"""What stands in the frames of a training loop and may be state: models, optimizers, schedulers, generators,
iterators, counters and sums. Found by what they are, named as the user writes them."""

from __future__ import annotations

import ast
import gc
import inspect
import random
import sys
import textwrap
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from types import GeneratorType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from holdfast.engine.loop_frames import Place, Scope, is_users, made_in
from holdfast.engine.loop_source import updated_attributes
from holdfast.engine.plain_attributes import has, own

_OWN = "/holdfast/engine/"
_MOST = 4000  # things looked at: a frame with more is not looked through to its end
_DEPTH = 3
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_NUMBERS = (int, float, complex, str, bytes, torch.Tensor, np.ndarray, np.generic)
_CONTAINERS = (list, dict, set, deque, bytearray)


@dataclass(frozen=True)
class Thing:
    """Something a loop may change. `name` is the expression that reaches it from the loop.

    `is_carried` says that the loop's source makes it out of its own last value; of things that are changed in
    place nothing needs to be said.
    """

    name: str
    kind: str
    value: Any
    place: Place
    is_carried: bool = False
    # The object that it is an attribute of, and where that is made.
    owner: str = ""
    owner_place: Place | None = None

    @property
    def called(self) -> str:
        return type(self.value).__name__


def things_in(scopes: Iterable[Scope], skip: Iterable[Any]) -> dict[str, Thing]:
    """By name, innermost frames first. `skip` are objects that are known to be ours."""
    found: dict[str, Thing] = {}
    seen = {id(value) for value in skip}
    for scope in scopes:
        for name, value in scope.names.items():
            if name in scope.carried.targets or not name.strip("_"):
                continue  # what is called _ nobody reads
            for thing in _expand(scope, name, value, 0, seen):
                if thing.name not in found and len(found) < _MOST:
                    found[thing.name] = thing
        for name in scope.carried.read_directly:
            loader = _looked_up(scope, name)
            if isinstance(loader, DataLoader) or _is_iterator(loader):
                place = Place(scope.file, scope.carried.read_directly[name])
                found[f"for ... in {name}"] = Thing(name, "loader", loader, place)
    return found


def kind_of(value: Any) -> str | None:
    """What a value is to training; None for what it never depends on."""
    if isinstance(value, nn.Module):
        return "module"
    if isinstance(value, torch.optim.Optimizer):
        return "optimizer"
    if isinstance(value, LRScheduler) or (has(value, "last_epoch") and has(value, "base_lrs")):
        return "scheduler"
    if isinstance(value, torch.amp.GradScaler):
        return "scaler" if value.is_enabled() else None
    if isinstance(value, _GENERATORS):
        return "generator"
    if isinstance(value, DataLoader) or type(value).__module__.startswith("holdfast"):
        return None
    if _is_iterator(value):
        return "iterator"
    if isinstance(value, (bool, type(None))):
        return "value" if value is not None else None
    if isinstance(value, (*_NUMBERS, *_CONTAINERS, tuple)):
        return "value"
    if has(value, "state_dict") and has(value, "load_state_dict"):
        return "stateful"
    return "object" if _is_users_object(value) else None


def _is_iterator(value: Any) -> bool:
    kind = type(value)
    return (
        hasattr(kind, "__next__") and hasattr(kind, "__iter__")
        and not hasattr(kind, "fileno") and not kind.__module__.startswith(("holdfast", "tqdm"))
        and not _goes_over_ours(value, 3)
    )  # fmt: skip


def _goes_over_ours(value: Any, depth: int) -> bool:
    """A generator, a zip, an enumerate around run.batches: what is behind it keeps its place."""
    if type(value).__module__.startswith("holdfast"):
        return True
    if isinstance(value, GeneratorType):
        if _OWN in value.gi_code.co_filename:
            return True
        inner = list(value.gi_frame.f_locals.values()) if value.gi_frame is not None else []
    elif type(value).__module__ in ("builtins", "itertools") and not isinstance(value, (dict, str)):
        inner = gc.get_referents(value)
    else:
        return False
    return depth > 0 and any(_goes_over_ours(item, depth - 1) for item in inner[:16])


def _expand(scope: Scope, name: str, value: Any, depth: int, seen: set[int]) -> Iterator[Thing]:
    kind = kind_of(value)
    if kind is None or (kind != "value" and id(value) in seen):
        return
    if kind != "value":
        seen.add(id(value))
    if kind == "value":
        if not _holds_things(value):
            yield Thing(name, kind, value, scope.made_at(name), name in scope.carried.names)
    elif kind != "object":
        yield Thing(name, kind, value, scope.made_at(name), name in scope.carried.advanced)
    if depth >= _DEPTH:
        return
    if kind == "object" or (kind == "stateful" and is_users(_file_of(_class_of(value)))):
        # One that can be saved is named as a whole; it is looked into for what its state may leave out.
        inner = _attributes(scope, name, value, depth, seen)
        if kind == "object":
            yield from inner
    elif isinstance(value, (dict, list, tuple)) and len(value) <= 64:
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            if kind_of(item) not in ("value", None, "iterator"):
                yield from _expand(scope, f"{name}[{key!r}]", item, depth + 1, seen)


def _holds_things(value: Any) -> bool:
    """A list of models and the like: its items are looked at one by one."""
    if not isinstance(value, (dict, list, tuple)):
        return False
    items = list(value.values() if isinstance(value, dict) else value)[:64]
    return any(kind_of(item) not in ("value", None) for item in items)


def _attributes(scope: Scope, name: str, value: Any, depth: int, seen: set[int]) -> Iterator[Thing]:
    updated = _updated_by(_class_of(value))
    for attribute, item in list(own(value).items()):
        full = f"{name}.{attribute}"
        for thing in _expand(scope, full, item, depth + 1, seen):
            if thing.name == full and thing.kind == "value":
                is_carried = thing.is_carried or attribute in updated
                place = _place_of(type(value), attribute, scope)
                thing = Thing(full, "value", item, place, is_carried, name, scope.made_at(name))
            yield thing


def hidden_in_modules(name: str, module: nn.Module, place: Place) -> Iterator[Thing]:
    """Plain attributes and buffers of a tracked model that its state_dict leaves out."""
    for path, inner in module.named_modules():
        if not is_users(_file_of(_class_of(inner))):
            continue  # torch's own layers keep what they change in buffers
        kept_back = inner._non_persistent_buffers_set
        for attribute, value in [*vars(inner).items(), *((n, inner._buffers[n]) for n in kept_back)]:
            plain = isinstance(value, _NUMBERS) and not isinstance(value, (str, bytes, bool))
            if plain and not attribute.startswith("_") and attribute not in inner._parameters:
                full = ".".join(part for part in (name, path, attribute) if part)
                yield Thing(full, "hidden", value, place, attribute in _updated_by(_class_of(inner)))


def _looked_up(scope: Scope, name: str) -> Any:
    first, *rest = name.split(".")
    value = scope.names.get(first)
    for part in rest:
        value = own(value).get(part)
    return value


def _is_users_object(value: Any) -> bool:
    return bool(own(value)) and is_users(_file_of(_class_of(value)))


def _class_of(value: Any) -> Any:
    return type(value)


@cache
def _file_of(kind: Any) -> str:
    name = kind.__module__
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None) or ""
    # A notebook's classes live in __main__, which has no file; what has none otherwise is built in.
    return file if file or name == "__main__" else sys.prefix + "/lib/"


@cache
def _updated_by(kind: Any) -> frozenset[str]:
    try:
        return frozenset(updated_attributes(ast.parse(textwrap.dedent(inspect.getsource(kind)))))
    except (OSError, TypeError, SyntaxError):
        return frozenset()


def _place_of(kind: Any, attribute: str, scope: Scope) -> Place:
    where = _source_of(kind)
    if where is None:
        return Place(scope.file, scope.line)
    file, first = where
    return Place(file, made_in(file).get(f"self.{attribute}", first))


@cache
def _source_of(kind: Any) -> tuple[str, int] | None:
    try:
        return inspect.getsourcefile(kind) or "?", inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):
        return None
