"""A checkpoint's state as flat paths and leaves, read without torch and without building any user object.

A leaf is a StoredTensor (where its bytes lie and what they mean) or a plain value. What several ranks hold
together is one leaf, however it was spread over them.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from holdfast.checkpoints.find import Found
from holdfast.checkpoints.read import require_manifest
from holdfast.contents.dcp import dcp_items, is_dcp
from holdfast.contents.records import read_records
from holdfast.contents.tensors import Common, CommonTensors, StoredTensor, tensor_of_one_rank
from holdfast.errors import CorruptCheckpoint
from holdfast.format.image import ImageLayout
from holdfast.format.rank_record import RankRecord
from holdfast.format.tree import Leaves, inflate, skeletons
from holdfast.stores.base import Store


@dataclass(frozen=True)
class ForeignValue:
    """A value of a library that is not loaded here, such as torch.dtype: comparable and printable."""

    tag: str
    payload: str

    def __str__(self) -> str:
        return f"{self.tag}({self.payload})"


def _foreign(tag: str) -> Any:
    return lambda payload: ForeignValue(tag, json.dumps(payload))


_LEAVES = Leaves(
    decoders={tag: _foreign(tag) for tag in ("torch.Size", "torch.dtype", "torch.device", "enum", "path")}
)

# A path as the user's containers have it. Keys are kept apart by their repr: 1 is not "1".
Path = tuple[str, ...]


@dataclass(frozen=True)
class Leaf:
    label: str
    value: Any


@dataclass
class StoredState:
    """`common` is what all ranks hold together, and what rank 0 holds for itself. `own` is what other ranks
    hold in its place: None where a rank holds nothing there."""

    common: dict[Path, Leaf] = field(default_factory=dict)
    own: dict[int, dict[Path, Leaf | None]] = field(default_factory=dict)
    # The tracked models, by their keys, and the file of each where one process saved it.
    models: dict[str, str] = field(default_factory=dict)

    def seen_by(self, rank: int, path: Path) -> Leaf | None:
        """What this rank gets when it restores; one that did not exist gets what rank 0 has."""
        return self.own.get(rank, {}).get(path, self.common.get(path))

    def tensors(self) -> Iterator[tuple[Path, str, StoredTensor]]:
        """Every tensor of every rank, with a label."""
        for path, leaf in self.common.items():
            if isinstance(leaf.value, StoredTensor):
                yield path, leaf.label, leaf.value
        for rank, leaves in self.own.items():
            for path, other in leaves.items():
                if other is not None and isinstance(other.value, StoredTensor):
                    yield path, of_rank(rank, other.label), other.value


def of_rank(rank: int, label: str) -> str:
    return f"rank {rank}: {label}"


def read_state(store: Store, found: Found) -> StoredState:
    """The whole state: headers and records are read, no tensors."""
    manifest = require_manifest(found)
    state = StoredState()
    if is_dcp(manifest):
        for path, value in dcp_items(manifest, _LEAVES):
            inside = (str(path[0]), *map(repr, path[1:]))
            state.common.update(_flat(value, inside, "/".join(map(str, path))))
        return state
    roles = {record.name: record.role for record in manifest.files}
    together = CommonTensors()
    for rank in range(manifest.world):
        # One after the other: together they may be many.
        said = read_records(store, found, [rank], verified=False)[0]
        leaves, keys_in = _leaves_of(said, together)
        if rank == 0:
            state.common = leaves
            for file, keys in keys_in.items():
                if roles[file] == "weights":
                    state.models |= dict.fromkeys(keys, file)
        elif own := _where_it_differs(state.common, leaves):
            state.own[rank] = own
    # Now that every rank's blocks are known.
    state.common = {path: _resolved(leaf, together) for path, leaf in state.common.items()}
    for rank, mine in state.own.items():
        state.own[rank] = {path: leaf and _resolved(leaf, together) for path, leaf in mine.items()}
    return state


def _where_it_differs(common: Mapping[Path, Leaf], mine: Mapping[Path, Leaf]) -> dict[Path, Leaf | None]:
    # Tensors of single ranks always count as different: whether their bytes are equal is not known here.
    own: dict[Path, Leaf | None] = {
        path: leaf
        for path, leaf in mine.items()
        if path not in common or not same_value(common[path].value, leaf.value)
    }
    return own | {path: None for path in common if path not in mine}


def _resolved(leaf: Leaf, together: CommonTensors) -> Leaf:
    return Leaf(leaf.label, together.whole(leaf.value)) if isinstance(leaf.value, Common) else leaf


def same_value(a: Any, b: Any) -> bool:
    # type() too: 1, True and 1.0 are equal but not the same state.
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, np.generic):
        return bool(a.dtype == b.dtype) and a.tobytes() == b.tobytes()
    return bool(a == b)


def _leaves_of(said: RankRecord, together: CommonTensors) -> tuple[dict[Path, Leaf], dict[str, list[str]]]:
    """What a rank holds, and the keys of the objects in each of its files."""
    leaves: dict[Path, Leaf] = {}
    inside: dict[str, list[str]] = {}
    for file, layout in said.layouts().items():
        for key, node in skeletons(layout.metadata, file).items():
            inside.setdefault(file, []).append(key)

            def tensor(
                entry: Mapping[str, Any], key: str = key, file: str = file, layout: ImageLayout = layout
            ) -> Any:
                return together.add(key, entry, file, layout) or tensor_of_one_rank(entry, file, layout)

            try:
                state = inflate(node, said.values[key], tensor, _LEAVES)
            except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
                raise CorruptCheckpoint(f"{file} does not match its skeleton: {error!r}") from error
            leaves.update(_flat(state, (key,), key))
    return leaves, inside


def _flat(value: Any, path: Path, label: str) -> Iterator[tuple[Path, Leaf]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, (*path, repr(key)), f"{label}/{key}")
    elif isinstance(value, Sequence | deque) and not isinstance(value, str | bytes) and value:
        for index, item in enumerate(value):
            yield from _flat(item, (*path, repr(index)), f"{label}/{index}")
    else:
        yield path, Leaf(label, value)
