"""Which tensor goes where: made once from a first walk over the state, reused while the state keeps its form.

Every module has an image of its own, so its weights file is usable elsewhere; all other tensors share one.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from holdfast.capture.torch_groups import Ranks, Sharing, sample_of, spelled, spread
from holdfast.capture.torch_leaves import CODES, TORCH_LEAVES, as_tensor, describe_leaf
from holdfast.capture.torch_shards import is_sharded, local_of, writes_it
from holdfast.format.image import MAX_NAME_BYTES, ImageLayout, TensorSpec, plan_image
from holdfast.format.names import of_rank
from holdfast.format.rank_sets import spell_ranks
from holdfast.format.tree import SKELETON, Flat, flatten, loosened, show_path, skeleton, tensor_paths

STATE_FILE = "state.safetensors"


@dataclass(frozen=True)
class Part:
    """One tracked object's state at a step boundary: live references, nothing copied yet."""

    key: str
    role: str
    state: Any
    flat: Flat
    # Its tensors come back to the devices that they were saved from.
    keeps_devices: bool = False


@dataclass(frozen=True)
class Placement:
    """The bytes [start, stop) of image number `image` belong to this tensor."""

    image: int
    start: int
    stop: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    lazy: bool
    label: str


@dataclass(frozen=True)
class Ambiguous:
    """Placement number `placement`, of the tracked object `key`, is held by these ranks and not by all.
    `said` tells it from the other tensors of the object."""

    key: str
    ranks: str
    placement: int
    said: str


@dataclass(frozen=True)
class ImagePlan:
    file: str
    role: str
    keys: tuple[str, ...]
    layout: ImageLayout


@dataclass(frozen=True)
class Selected:
    """The tensors to copy, in the order of the placements. `counters`, by the same index: the tensor that one
    of them is a part of. It counts the changes that are made through it, and the part does not."""

    tensors: list[torch.Tensor]
    counters: dict[int, torch.Tensor]


@dataclass(frozen=True)
class StatePlan:
    images: tuple[ImagePlan, ...]
    placements: tuple[Placement, ...]
    # Positions in the walk: the tensors that are stored, and (copy, original) for those that are tied.
    stored: tuple[int, ...]
    tied: tuple[tuple[int, int], ...]
    # Of NumPy arrays the type and shape: what is copied are their plain bytes, which look alike.
    arrays: Mapping[int, tuple[np.dtype[Any], tuple[int, ...]]]
    shapes: tuple[list[Any], ...]
    forms: list[tuple[Any, ...]]
    # Positions of tensors of which this rank holds a part.
    sharded: tuple[int, ...] = ()
    # By group (its ranks, spelled): stands for how the tensors that its ranks hold alike were divided.
    divisions: Mapping[str, str] = field(default_factory=dict)
    # What other groups may hold differently under the same name: parameters of this rank or of its groups.
    ambiguous: tuple[Ambiguous, ...] = ()
    # Positions of what groups keep equal: group and name.
    alike: Mapping[int, tuple[str, str]] = field(default_factory=dict)

    def deferring(self, selected: Selected, lazy_ids: Container[int]) -> StatePlan:
        """This plan, with what may be copied later worked out again: a parameter that was replaced is not the
        one that the fence protects. The same plan where nothing is different."""
        lazy = [id(selected.counters.get(i, tensor)) in lazy_ids for i, tensor in enumerate(selected.tensors)]
        if all(place.lazy is now for place, now in zip(self.placements, lazy, strict=True)):
            return self
        places = (replace(place, lazy=now) for place, now in zip(self.placements, lazy, strict=True))
        return replace(self, placements=tuple(places))

    @property
    def total_bytes(self) -> int:
        return sum(image.layout.size for image in self.images)

    def select(self, parts: Sequence[Part]) -> Selected | None:
        """The tensors to copy; None if the state no longer fits this plan."""
        if len(parts) != len(self.shapes) or any(
            p.flat.shape != shape for p, shape in zip(parts, self.shapes, strict=True)
        ):
            return None
        tensors = [t for part in parts for t in part.flat.tensors]
        for index, form in self.arrays.items():
            array = tensors[index]
            if not isinstance(array, np.ndarray) or (array.dtype, array.shape) != form:
                return None
            tensors[index] = as_tensor(array, "array")
        whole = {index: tensors[index] for index in self.sharded}
        first = 0
        for part in parts:
            whole.update({first + i: wrapper for i, wrapper in part.flat.wrappers.items()})
            first += len(part.flat.tensors)
        for index in self.sharded:
            tensors[index] = local_of(tensors[index])
        # A loop that keeps nothing: 12,000 fresh tuples would wake the garbage collector at every save.
        for tensor, (shape, dtype, stride, device) in zip(tensors, self.forms, strict=True):
            if (
                tensor.shape != shape
                or tensor.dtype is not dtype
                or tensor.stride() != stride
                or tensor.device != device  # Offloaded, or fetched back: it is copied in another way.
            ):
                return None
        # Tied at planning and untied since: storing only one of them would lose the other.
        if any(tensors[copy].data_ptr() != tensors[original].data_ptr() for copy, original in self.tied):
            return None
        counters = {i: whole[at] for i, at in enumerate(self.stored) if at in whole} if whole else {}
        return Selected([tensors[i] for i in self.stored], counters)

    def sample(self, parts: Sequence[Part]) -> dict[str, str]:
        """By group: a digest of a few numbers of all that its ranks are said to hold alike."""
        tensors = [t for part in parts for t in part.flat.tensors]
        return sample_of((ranks, name, tensors[i]) for i, (ranks, name) in self.alike.items())


def take_parts(tracked: Iterable[Any], loose: Container[str] = ()) -> list[Part]:
    """Walk every tracked object. Raises SetupError naming the path of a value that cannot be stored."""
    return [part_of(item, loose=item.key in loose) for item in tracked]


def part_of(item: Any, state: Any = None, *, loose: bool = False) -> Part:
    """One tracked object, walked. `state` is its state where it was taken before. With `loose`, a state
    without tensors may have another form at every save."""
    state = item.take() if state is None else state
    flat = flatten(state, TORCH_LEAVES, item.key)
    if loose and not flat.tensors:
        state, flat = loosened(state, flat, TORCH_LEAVES, item.key)
    return Part(item.key, item.role, state, flat, getattr(item, "keeps_devices", False))


def plan_state(parts: Sequence[Part], lazy_ids: set[int], sharing: Sharing | None = None) -> StatePlan:
    """Lay out images for this state. `lazy_ids` are tensors that only a fenced optimizer step changes.

    With `sharing`, the images are one rank's: of what several ranks hold, each writes its share.
    """
    owners = _owners(parts, sharing)
    divided: dict[str, list[tuple[str, str, int, int]]] = defaultdict(list)
    alike: dict[int, tuple[str, str]] = {}
    ambiguous: list[Ambiguous] = []
    sharded: list[int] = []
    stored: list[int] = []
    tied: list[tuple[int, int]] = []
    arrays: dict[int, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    forms: list[tuple[Any, ...]] = []
    images: list[ImagePlan] = []
    located: list[tuple[int, str, torch.Tensor, bool, str]] = []
    position = 0
    for image_index, (file, role, members) in enumerate(_group_by_image(parts)):
        specs: list[TensorSpec] = []
        skeletons: dict[str, Any] = {}
        taken: set[str] = set()
        for part in members:
            seen: dict[tuple[Any, ...], tuple[int, str]] = {}
            entries: list[dict[str, Any]] = []
            paths = tensor_paths(part.state, TORCH_LEAVES, part.key)
            wrappers = part.flat.wrappers
            for inside, (leaf, path) in enumerate(zip(part.flat.tensors, paths, strict=True)):
                label = show_path(path)
                tensor = as_tensor(leaf, label)
                if isinstance(leaf, np.ndarray):
                    arrays[position] = (leaf.dtype, leaf.shape)
                forms.append((tensor.shape, tensor.dtype, tensor.stride(), tensor.device))
                identity = _identity(tensor, position)
                if identity in seen:
                    original, name = seen[identity]
                    tied.append((position, original))
                else:
                    name = _tensor_name(part, path, taken)
                    seen[identity] = (position, name)
                    if _is_mine(leaf, name, owners, sharing):
                        specs.append(_spec(tensor, name))
                        stored.append(position)
                        located.append(
                            (image_index, name, tensor, id(wrappers.get(inside, leaf)) in lazy_ids, label)
                        )
                if is_sharded(leaf):
                    sharded.append(position)
                entry = describe_leaf(leaf, name)
                if part.keeps_devices and tensor.device.type != "cpu":
                    entry["device"] = str(tensor.device)
                if sharing is not None:
                    group = sharing.group_of(leaf)
                    entry |= _group_words(leaf, group, owners, sharing)
                    if id(leaf) in owners:
                        ranks = spell_ranks(group)
                        divided[ranks].append((part.key, name, tensor.nbytes, owners[id(leaf)]))
                        alike[position] = (ranks, f"{part.key}/{name}")
                    whole = wrappers.get(inside, leaf)
                    if stored and stored[-1] == position and _is_ambiguous(whole, group, sharing):
                        said = repr((name, tensor.dtype, tuple(tensor.shape), entry.get("offset")))
                        ambiguous.append(Ambiguous(part.key, spell_ranks(group), len(stored) - 1, said))
                entries.append(entry)
                position += 1
            skeletons[part.key] = skeleton(part.state, TORCH_LEAVES, iter(entries), part.key)
        metadata = {SKELETON: json.dumps(skeletons, separators=(",", ":"))}
        if role == "weights":
            metadata["format"] = "pt"
        keys = tuple(part.key for part in members)
        file = file if sharing is None else of_rank(file, sharing.rank)
        images.append(ImagePlan(file, role, keys, plan_image(specs, metadata)))
    placements = []
    for image_index, name, tensor, lazy, label in located:
        start, stop = images[image_index].layout.spans[name]
        placements.append(Placement(image_index, start, stop, tensor.dtype, tuple(tensor.shape), lazy, label))
    return StatePlan(
        images=tuple(images),
        placements=tuple(placements),
        stored=tuple(stored),
        tied=tuple(tied),
        arrays=arrays,
        shapes=tuple(part.flat.shape for part in parts),
        forms=forms,
        sharded=tuple(sharded),
        divisions={
            ranks: hashlib.sha256(repr(names).encode()).hexdigest() for ranks, names in divided.items()
        },
        ambiguous=tuple(ambiguous),
        alike=alike,
    )


def _owners(parts: Sequence[Part], sharing: Sharing | None) -> dict[int, int]:
    """Which rank writes each of the tensors that several ranks hold alike, by id."""
    if sharing is None:
        return {}
    groups: dict[Ranks, dict[int, torch.Tensor]] = defaultdict(dict)
    for part in parts:
        for tensor in part.flat.tensors:
            if (ranks := sharing.replicated.get(id(tensor))) is not None:
                groups[ranks][id(tensor)] = tensor
    owners: dict[int, int] = {}
    for ranks, tensors in groups.items():
        owners.update(zip(tensors, spread([t.nbytes for t in tensors.values()], ranks), strict=True))
    return owners


def _group_words(leaf: Any, group: Ranks, owners: Mapping[int, int], sharing: Sharing) -> dict[str, Any]:
    if id(leaf) not in owners and not is_sharded(leaf):
        return {}
    words: dict[str, Any] = {} if is_sharded(leaf) else {"shared": True}
    ranks = spelled(group, sharing.world)
    return words if ranks is None else words | {"ranks": ranks}


def _is_ambiguous(leaf: Any, group: Ranks, sharing: Sharing) -> bool:
    """Of what is one rank's own, only parameters: statistics, random streams and the like differ anyway."""
    if len(group) == 1 and not is_sharded(leaf):
        return isinstance(leaf, torch.nn.Parameter)
    return group != sharing.everybody


def _is_mine(leaf: Any, name: str, owners: Mapping[int, int], sharing: Sharing | None) -> bool:
    if sharing is None:
        return True
    if is_sharded(leaf):
        return writes_it(leaf, name)
    return owners.get(id(leaf), sharing.rank) == sharing.rank


def encode_values(parts: Sequence[Part]) -> dict[str, list[Any]]:
    """The manifest's part of the state: every leaf that is not a tensor."""
    return {part.key: [TORCH_LEAVES.encode(v) for v in part.flat.values] for part in parts}


def summarise(parts: Sequence[Part]) -> dict[str, Any]:
    """What a manifest says about each tracked object."""
    return {
        part.key: {
            "role": part.role,
            "tensors": len(part.flat.tensors),
            "bytes": sum(_nbytes(t) for t in part.flat.tensors),
        }
        for part in parts
    }


def _nbytes(leaf: Any) -> int:
    return int(leaf.nbytes if isinstance(leaf, np.ndarray) else local_of(leaf).nbytes)


def _group_by_image(parts: Sequence[Part]) -> list[tuple[str, str, list[Part]]]:
    weights = [(_weights_file(p.key, i), "weights", [p]) for i, p in enumerate(parts) if p.role == "weights"]
    rest = [p for p in parts if p.role != "weights"]
    return [*weights, *([(STATE_FILE, "state", rest)] if rest else [])]


def _weights_file(key: str, index: int) -> str:
    # A user's keyword is a Python identifier, but file names are all lower case and short.
    plain = key.isascii() and key.islower() and len(key) <= 64 and key[0] != "_" and key != "state"
    return f"{key}.safetensors" if plain else f"weights-{index:03d}.safetensors"


def _identity(tensor: torch.Tensor, position: int) -> tuple[Any, ...]:
    if tensor.numel() == 0:
        return ("empty", position)
    # z and z.conj() differ in nothing but a flag.
    flags = (tensor.is_conj(), tensor.is_neg())
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), str(tensor.device), flags)


def _spec(tensor: torch.Tensor, name: str) -> TensorSpec:
    code = CODES.get(tensor.dtype)
    if code is None:
        return TensorSpec(name, "U8", (math.prod(tensor.shape) * tensor.itemsize,))
    return TensorSpec(name, code, tuple(tensor.shape))


def _tensor_name(part: Part, path: tuple[Any, ...], taken: set[str]) -> str:
    inside = path[1:] if part.role == "weights" else path
    joined = ("." if part.role == "weights" else "/").join(str(p) for p in inside)
    name = joined.encode("utf-8", "replace").decode() or part.key
    if not name.isprintable():
        name = "".join(c if c.isprintable() else "?" for c in name)
    if len(name.encode()) > MAX_NAME_BYTES - 40 or name in taken or name == "__metadata__":
        # Too long, or 1 and "1" as keys of one dict: stay unique. The skeleton knows the true path.
        name = f"{name[:100]}~{hashlib.sha256(repr((path, len(taken))).encode()).hexdigest()[:12]}"
    taken.add(name)
    return name
