"""Nested state <-> a fixed skeleton, a list of tensors and a list of values. Total and reversible.

The skeleton (containers, keys, which tensor goes where) seldom changes, so it is planned once and lives in
the image's header; `flatten` is the quick walk of every save, and its `shape` says whether the skeleton
still fits. A value of an unknown type is an error that names its path, never a silent loss.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import CorruptCheckpoint, SetupError
from holdfast.format.scalars import ENCODERS, Decoder, Encoder, decode_scalar, encode_enum, is_scalar

MAX_DEPTH = 100
# Where an image's metadata has the skeletons of its objects, by their keys.
SKELETON = "holdfast.skeleton"

# How a type is treated. Mappings and sequences are walked, leaves are collected.
# A wrapped tensor is one that is made of others: walked like a mapping of them.
MAPPING, SEQUENCE, SCALAR, TENSOR, WRAPPED = 1, 2, 3, 4, 5
_SCALAR_LEAF, _TENSOR_LEAF = (SCALAR, ""), (TENSOR, "")
_LEAF_KINDS = {SCALAR: _SCALAR_LEAF, TENSOR: _TENSOR_LEAF, WRAPPED: (WRAPPED, "wrapped")}

_CONTAINERS: dict[type, tuple[int, str]] = {
    dict: (MAPPING, "dict"),
    OrderedDict: (MAPPING, "odict"),
    Counter: (MAPPING, "counter"),
    defaultdict: (MAPPING, "defaultdict"),
    list: (SEQUENCE, "list"),
    tuple: (SEQUENCE, "tuple"),
    deque: (SEQUENCE, "deque"),
    set: (SEQUENCE, "set"),
    frozenset: (SEQUENCE, "frozenset"),
}
_FACTORIES: dict[str, Any] = {"": None, "list": list, "dict": dict, "int": int, "float": float, "set": set}

Path = tuple[Any, ...]


@dataclass(frozen=True)
class Loose:
    """A tree without tensors that is one value: its skeleton goes where its values go, and may change with
    every save. For what grows, such as a history of losses, beside tensors that keep their places."""

    node: Any
    values: list[Any]


def loosened(state: Any, flat: Flat, leaves: Leaves, root: str = "state") -> tuple[Loose, Flat]:
    """`state`, which was flattened to `flat` and holds no tensors, as one value, and that value flattened."""
    one = Loose(skeleton(state, leaves, iter(()), root), flat.values)
    return one, flatten(one, leaves, root)


@dataclass
class Leaves:
    """Which foreign types are leaves: filled by the files that know those libraries."""

    tensors: set[type] = field(default_factory=set)
    scalars: dict[type, Encoder] = field(default_factory=dict)
    decoders: dict[str, Decoder] = field(default_factory=dict)
    # Asked for a type seen for the first time: is it one of mine? Answers TENSOR, SCALAR, WRAPPED or None.
    recognise: Callable[[type], int | None] = lambda kind: None
    # Of a wrapped tensor: what stays as it is, and what it consists of. And the tensor again.
    take_apart: Callable[[Any, str], tuple[list[Any], Any]] = lambda value, where: ([], value)
    put_together: Callable[[Any, Any], Any] = lambda said, content: content["parts"]

    def __post_init__(self) -> None:
        self.known_kinds: dict[type, tuple[int, str]] = dict(_CONTAINERS)
        self.decoders.setdefault("tree", lambda tree: inflate(tree[0], tree[1], _no_tensor, self))
        for kind in (*ENCODERS, *self.scalars, Loose):
            self.known_kinds[kind] = _SCALAR_LEAF
        for kind in self.tensors:
            self.known_kinds[kind] = _TENSOR_LEAF

    def kind(self, of: type) -> tuple[int, str] | None:
        known = self.known_kinds.get(of)
        if known is None and (found := SCALAR if is_scalar(of) else self.recognise(of)) is not None:
            known = self.known_kinds[of] = _LEAF_KINDS[found]
        return known

    def encode(self, value: Any) -> Any:
        if type(value) is Loose:
            return ["tree", [value.node, [self.encode(item) for item in value.values]]]
        encoder = ENCODERS.get(type(value)) or self.scalars.get(type(value)) or encode_enum
        return encoder(value)


@dataclass
class Flat:
    """One walk over a state: `shape` is equal for two states that fit the same skeleton."""

    shape: list[Any] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    # By the index of a tensor: the one that it is a part of.
    wrappers: dict[int, Any] = field(default_factory=dict)


def show_path(path: Path) -> str:
    """("optimizer", "state", 0) -> "optimizer['state'][0]"."""
    head, *rest = path or ("state",)
    return str(head) + "".join(f"[{part!r}]" for part in rest)


def flatten(state: Any, leaves: Leaves, root: str = "state") -> Flat:
    """Collect tensors and values in a fixed order. Raises SetupError for what cannot be stored."""
    flat = Flat()
    _walk(state, flat, leaves, (root,))
    return flat


def _walk(value: Any, flat: Flat, leaves: Leaves, path: Path) -> None:
    known = leaves.kind(type(value))
    if known is None:
        raise _unknown(value, path)
    kind, name = known
    shape, kinds = flat.shape, leaves.known_kinds
    if kind == TENSOR:
        shape.append(TENSOR)
        flat.tensors.append(value)
        return
    if kind == SCALAR:
        shape.append(SCALAR)
        flat.values.append(value)
        return
    if len(path) > MAX_DEPTH:
        raise SetupError(f"{show_path(path[:4])}… is nested more than {MAX_DEPTH} deep, or contains itself")
    if kind == WRAPPED:
        said, content = leaves.take_apart(value, show_path(path))
        shape += (name, said)
        first = len(flat.tensors)
        _walk(content, flat, leaves, path)
        flat.wrappers.update(dict.fromkeys(range(first, len(flat.tensors)), value))
        return
    shape += (name, len(value), *_container_details(value, name, path))
    is_mapping = kind == MAPPING
    for key, item in value.items() if is_mapping else enumerate(_ordered(value, name)):
        if is_mapping:
            # The key's type is part of the shape: 1, True and 1.0 are equal but not the same key.
            shape.append(key)
            if type(key) is not str:
                # Nor are 0.0 and -0.0, or (1,) and (True,).
                shape.append(type(key) if type(key) is int else repr(key))
        # Leaves are handled here and not by the recursion: with 12,000 tensors every call counts.
        known = kinds.get(type(item))
        if known is _TENSOR_LEAF:
            shape.append(TENSOR)
            flat.tensors.append(item)
        elif known is _SCALAR_LEAF:
            shape.append(SCALAR)
            flat.values.append(item)
        else:
            _walk(item, flat, leaves, (*path, key))


def tensor_paths(state: Any, leaves: Leaves, root: str = "state") -> list[Path]:
    """Where each of the tensors that `flatten` finds lies, in its order."""
    found: list[Path] = []

    def visit(value: Any, path: Path) -> None:
        kind, name = leaves.kind(type(value)) or _SCALAR_LEAF
        if kind == TENSOR:
            found.append(path)
        elif kind == WRAPPED:
            visit(leaves.take_apart(value, show_path(path))[1]["parts"], path)
        elif kind == MAPPING:
            for key, item in value.items():
                visit(item, (*path, key))
        elif kind == SEQUENCE:
            for index, item in enumerate(_ordered(value, name)):
                visit(item, (*path, index))

    visit(state, (root,))
    return found


def _ordered(value: Any, name: str) -> Any:
    # A set has no order of its own that survives a restart (string hashes differ per process).
    return sorted(value, key=lambda v: (type(v).__name__, repr(v))) if name in ("set", "frozenset") else value


def _container_details(value: Any, name: str, path: Path) -> tuple[Any, ...]:
    if name == "odict":
        # Where torch keeps the version of every module, which decides how its state is loaded.
        notes = getattr(value, "_metadata", None)
        return () if notes is None else (notes,)
    if name == "deque":
        return (value.maxlen,)
    if name == "defaultdict":
        factory = "" if value.default_factory is None else getattr(value.default_factory, "__name__", "?")
        if _FACTORIES.get(factory, _unknown) is not value.default_factory:
            raise SetupError(f"{show_path(path)} is a defaultdict with a factory that cannot be stored",
                             hint="return a plain dict from state_dict()")  # fmt: skip
        return (factory,)
    return ()


def _unknown(value: Any, path: Path) -> SetupError:
    kind = type(value)
    return SetupError(
        f"cannot save {show_path(path)}: a value of type {kind.__module__}.{kind.__qualname__}",
        hint="state_dict() must consist of tensors, arrays, numbers, strings, bytes, None and dicts, "
        "lists or tuples of them",
    )


def skeleton(state: Any, leaves: Leaves, tensor_entry: Iterator[Any], root: str = "state") -> Any:
    """The JSON tree that `inflate` reads, taking the next entry of `tensor_entry` for each tensor."""
    counter = iter(range(1 << 62))

    def build(value: Any, path: Path) -> Any:
        known = leaves.kind(type(value))
        if known is None:
            raise _unknown(value, path)
        kind, name = known
        if kind == TENSOR:
            return {"tensor": next(tensor_entry)}
        if kind == SCALAR:
            return next(counter)
        node: dict[str, Any] = {}
        if kind == WRAPPED:
            said, content = leaves.take_apart(value, show_path(path))
            return {name: build(content, path), "with": said}
        if kind == MAPPING:
            node[name] = [[_encode_key(k, leaves, path), build(v, (*path, k))] for k, v in value.items()]
        else:
            node[name] = [build(v, (*path, i)) for i, v in enumerate(_ordered(value, name))]
        details = _container_details(value, name, path)
        if details:
            node["with"] = _encode_notes(details[0], leaves, path) if name == "odict" else details[0]
        return node

    return build(state, (root,))


def _encode_notes(notes: Any, leaves: Leaves, path: Path) -> dict[str, dict[str, Any]]:
    where = f"{show_path(path)}._metadata"
    if not isinstance(notes, Mapping) or not all(isinstance(said, Mapping) for said in notes.values()):
        raise SetupError(f"cannot save {where}: it must say something of each module by its name")
    flat = {part: flatten(dict(said), leaves, where) for part, said in notes.items()}
    if any(one.tensors for one in flat.values()) or not all(type(part) is str for part in notes):
        raise SetupError(f"cannot save {where}: it may hold names and plain values only")
    return {
        str(part): {
            str(key): leaves.encode(value) for key, value in zip(said, flat[part].values, strict=True)
        }
        for part, said in notes.items()
    }


def _decode_notes(said: Any, leaves: Leaves) -> OrderedDict[str, dict[str, Any]]:
    return OrderedDict(
        (part, {key: decode_scalar(value, leaves.decoders) for key, value in notes.items()})
        for part, notes in said.items()
    )


def _encode_key(key: Any, leaves: Leaves, path: Path) -> Any:
    if type(key) is tuple:
        return {"tuple": [_encode_key(part, leaves, path) for part in key]}
    known = leaves.kind(type(key))
    if known is None or known[0] != SCALAR:
        raise SetupError(f"cannot save {show_path(path)}: a key of type {type(key).__name__}")
    return leaves.encode(key)


def inflate(node: Any, values: list[Any], tensor: Callable[[Any], Any], leaves: Leaves) -> Any:
    """The state again: `tensor` turns a skeleton's tensor entry into the tensor."""
    if isinstance(node, int) and not isinstance(node, bool):
        if not 0 <= node < len(values):
            raise CorruptCheckpoint(f"the skeleton asks for value {node} of {len(values)}")
        return decode_scalar(values[node], leaves.decoders)
    try:
        ((name, content),) = ((k, v) for k, v in node.items() if k != "with")
        if name == "tensor":
            return tensor(content)
        if name == "wrapped":
            return leaves.put_together(node["with"], inflate(content, values, tensor, leaves))
        if name in ("dict", "odict", "counter", "defaultdict"):
            pairs = [(decode_key(k, leaves), inflate(v, values, tensor, leaves)) for k, v in content]
            return _build_mapping(name, pairs, node.get("with"), leaves)
        items = [inflate(item, values, tensor, leaves) for item in content]
        if name == "deque":
            return deque(items, node.get("with"))
        return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[name](items)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise CorruptCheckpoint(f"the skeleton of a stored state cannot be read: {error!r}") from error


def _no_tensor(entry: Any) -> Any:
    raise CorruptCheckpoint("a value that should hold no tensor holds one")


def _build_mapping(name: str, pairs: list[tuple[Any, Any]], details: Any, leaves: Leaves) -> Any:
    if name == "defaultdict":
        return defaultdict(_FACTORIES[details], pairs)
    if name == "counter":
        return Counter(dict(pairs))
    if name == "dict":
        return dict(pairs)
    ordered: Any = OrderedDict(pairs)
    if details is not None:
        ordered._metadata = _decode_notes(details, leaves)
    return ordered


def decode_key(key: Any, leaves: Leaves) -> Any:
    if isinstance(key, dict):
        return tuple(decode_key(part, leaves) for part in key["tuple"])
    return decode_scalar(key, leaves.decoders)


def skeletons(metadata: Mapping[str, str], file: str) -> dict[str, Any]:
    """The skeletons of the objects in an image, by their keys."""
    try:
        found = json.loads(metadata[SKELETON])
    except (KeyError, ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"{file} has no readable skeleton: {error!r}") from error
    if not isinstance(found, dict):
        raise CorruptCheckpoint(f"{file} has a skeleton that is not an object")
    return found
