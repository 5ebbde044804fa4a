"""Walk behind training what nothing but a fenced step changes: on the training thread a save then costs the
same for a hundred tensors and for a hundred thousand.

Held back are modules and optimizers whose `state_dict` is torch's own. What else may change before the next
step is taken at the boundary: buffers by the place where they were found, hyper-parameters by value, every
other object whole.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from holdfast.capture.torch_leaves import as_tensor
from holdfast.capture.torch_plan import Part, Selected, StatePlan, part_of
from holdfast.capture.torch_registry import Tracked
from holdfast.errors import TornSnapshot
from holdfast.staging.torch_stager import Snapshot


@dataclass(frozen=True)
class Held:
    """A boundary's state, not yet walked in full: `expected` are the tensors that the walk should find."""

    expected: Selected
    # Called once, on any thread, before the next optimizer step: every part, and every tensor to copy.
    resolve: Callable[[], tuple[list[Part], Selected]]


class Deferral:
    """What can wait, worked out once per layout."""

    def __init__(
        self,
        tracked: Sequence[Tracked],
        parts: Sequence[Part],
        plan: StatePlan,
        selected: Selected,
        loose: Container[str] = (),
    ) -> None:
        self._loose = loose
        tensors = selected.tensors
        self._plan = plan
        self._tracked = tracked
        placement_of = {position: i for i, position in enumerate(plan.stored)}
        # (index of the object, first position of its tensors) of what is taken at every boundary.
        self._prompt: list[tuple[int, int]] = []
        self._waiting: list[int] = []
        self._eager: list[tuple[int, dict[str, Any], str, tuple[Any, ...]]] = []
        position = 0
        for index, (item, part) in enumerate(zip(tracked, parts, strict=True)):
            positions = range(position, position + len(part.flat.tensors))
            mine = [placement_of[p] for p in positions if p in placement_of]
            places = item.places_of_tensors() if hasattr(item, "places_of_tensors") else None
            eager = [i for i in mine if not plan.placements[i].lazy]
            if places is not None and all(id(tensors[i]) in places for i in eager):
                self._waiting.append(index)
                for i in eager:
                    self._eager.append((i, *places[id(tensors[i])], plan.forms[plan.stored[i]]))
            else:
                self._prompt.append((index, position))
            position += len(positions)
        self._placement_of = placement_of
        self._sharded = frozenset(plan.sharded)
        self.expect(selected)

    def expect(self, selected: Selected) -> None:
        """These were found by the last walk: the ones whose versions are noted at the next boundary."""
        self._expected = selected
        watching: list[Callable[[], bool]] = [self._tracked[index].watch() for index in self._waiting]  # type: ignore[attr-defined]
        self._watching = watching

    def is_same(self) -> bool:
        """Whether the objects that are walked behind training still consist of the same ones."""
        return all(watch() for watch in self._watching)

    @property
    def is_worthwhile(self) -> bool:
        return bool(self._waiting)

    def hold(self) -> Held | None:
        """Take what cannot wait. None if the state no longer fits the plan: then it must be walked now."""
        if not self.is_same():
            return None
        tensors, counters = self._expected.tensors.copy(), self._expected.counters.copy()
        parts: dict[int, Part] = {}
        for index, first in self._prompt:
            item = self._tracked[index]
            part = parts[index] = part_of(item, loose=item.key in self._loose)
            if part.flat.shape != self._plan.shapes[index]:
                return None
            for position, leaf in enumerate(part.flat.tensors, first):
                tensor = as_tensor(leaf, part.key)
                if not _has_form(tensor, self._plan.forms[position]):
                    return None
                i = self._placement_of.get(position)
                if i is None:
                    continue
                if self._plan.placements[i].lazy and tensor is not tensors[i]:
                    return None  # Replaced: is it still one that only a fenced step changes?
                tensors[i] = tensor
                if position in self._sharded:
                    counters[i] = leaf
                elif position - first in part.flat.wrappers:
                    counters[i] = part.flat.wrappers[position - first]
        for i, container, key, form in self._eager:
            buffer = container.get(key)
            if buffer is None or not _has_form(buffer, form):
                return None
            tensors[i] = buffer
        later: dict[int, Any] = {index: self._hold_back(index) for index in self._waiting}

        def resolve() -> tuple[list[Part], Selected]:
            try:
                for index, state in later.items():
                    parts[index] = part_of(self._tracked[index], state())
                everything = [parts[index] for index in range(len(self._tracked))]
                found = self._plan.select(everything)
            except Exception as error:
                raise TornSnapshot(f"the state could not be read behind training: {error!r}") from error
            if found is None:
                raise TornSnapshot("the state changed its form right after the step; the save is taken again")
            for i, counter in found.counters.items():
                if counters.get(i) is not counter:
                    raise TornSnapshot(f"{self._plan.placements[i].label} was wrapped anew after the step")
            return everything, found

        return Held(Selected(tensors, counters), resolve)

    def _hold_back(self, index: int) -> Callable[[], Any]:
        hold: Callable[[], Callable[[], Any]] = self._tracked[index].hold  # type: ignore[attr-defined]
        return hold()


def _has_form(tensor: torch.Tensor, form: tuple[Any, ...]) -> bool:
    shape, dtype, stride, device = form
    return (
        tensor.shape == shape
        and tensor.dtype is dtype
        and tensor.stride() == stride
        and tensor.device == device
    )


# ---- Large tensors that no optimizer steps and that nothing changes between a boundary and the next step:
# frozen weights, a teacher, an average of the weights that is updated right behind the optimizer.
#
# They are copied behind training like those that the fence protects, watched by their version and by a
# sample of their bytes. A momentum encoder, which is moved by the forward pass, is never the same at the
# next step as at the boundary and stays among those that are copied there.

# Below this a copy at the boundary costs less than to think about it.
WORTH_IT_BYTES = 64 << 10
# Saves behind which it stayed as it was until the next step, or until the next save.
_BELIEVED = 2
_SPOTS = 8
_SPOT_BYTES = 16


@dataclass
class _Seen:
    tensor: weakref.ref[torch.Tensor]
    held: weakref.ref[torch.Tensor]
    note: tuple[Any, ...]
    times: int = 0
    # Whether it was the same when the next optimizer step began; None while none has.
    stayed: bool | None = None


class Quiet:
    """Used by the training thread only."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._awaits_step = False

    def step_begins(self) -> None:
        """The fence: the first step behind a save. Costs nothing at others."""
        if not self._awaits_step:
            return
        self._awaits_step = False
        for one in self._seen.values():
            counter, tensor = one.tensor(), one.held()
            if counter is None or tensor is None or not one.note:
                continue
            if one.times >= _BELIEVED:
                # The snapshot itself compares the bytes.
                one.stayed = one.note[:2] == (tensor._version, counter._version)
            else:
                one.stayed = one.note == _note(tensor, counter)

    def look(
        self, tensors: Sequence[torch.Tensor], counters: Mapping[int, torch.Tensor], among: Iterable[int]
    ) -> bool:
        """Compare those `among` the tensors with the last save. Whether others are quiet now than before."""
        before = self.ids()
        seen: dict[int, _Seen] = {}
        for i in among:
            tensor = tensors[i]
            counter = counters.get(i, tensor)
            note = _note(tensor, counter)
            last = self._seen.get(id(counter))
            times = 0
            if note and last is not None and last.tensor() is counter:
                stayed = last.note == note if last.stayed is None else last.stayed
                times = last.times + 1 if stayed else 0
            seen[id(counter)] = _Seen(weakref.ref(counter), weakref.ref(tensor), note, times)
        self._seen, self._awaits_step = seen, bool(seen)
        return self.ids() != before

    def ids(self) -> set[int]:
        return {
            ident for ident, one in self._seen.items() if one.times >= _BELIEVED and one.tensor() is not None
        }


def _note(tensor: torch.Tensor, counter: torch.Tensor) -> tuple[Any, ...]:
    """Empty for one whose bytes cannot be sampled: it is never quiet."""
    if tensor.is_inference() or counter.is_inference() or tensor.is_conj() or tensor.is_neg():
        return ()
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        return ()
    start, last = tensor.data_ptr(), tensor.nbytes - _SPOT_BYTES
    spots = (ctypes.string_at(start + last * k // (_SPOTS - 1), _SPOT_BYTES) for k in range(_SPOTS))
    return tensor._version, counter._version, start, *spots


# ---- What torn snapshots teach: a tensor that changed behind the boundary once will do so again.
#
# An embedding with max_norm is clipped in every forward pass: copied late, it would tear every save. It
# is copied at the boundary from then on. Weights that were swapped as a whole, for a validation, must do
# so twice.

_MOST = 0.5


class Tears:
    """Used by the training thread only."""

    def __init__(self) -> None:
        self._watched: list[Snapshot] = []
        self._torn: dict[int, weakref.ref[torch.Tensor]] = {}
        self._mass_tears = 0

    def watch(self, snapshot: Snapshot) -> None:
        self._watched.append(snapshot)

    def learn(self) -> bool:
        """Look at what has ended. Whether something tore that had not torn before."""
        ended = [s for s in self._watched if s.wait(0)]
        self._watched = [s for s in self._watched if s not in ended]
        before = len(self._torn)
        for snapshot in ended:
            self._mass_tears += snapshot.torn_share > _MOST
            if snapshot.torn_share <= _MOST or self._mass_tears > 1:
                self._torn.update({id(t): weakref.ref(t) for t in snapshot.torn})
            snapshot.torn = []
        return len(self._torn) > before

    def torn_ids(self) -> set[int]:
        """Those that still exist: the id of one that is gone may belong to another by now."""
        return {ident for ident, reference in self._torn.items() if reference() is not None}
