"""Walk behind training what nothing but a fenced step changes: on the training thread a save then costs the
same for a hundred tensors and for a hundred thousand.

Held back are modules and optimizers whose `state_dict` is torch's own. What else may change before the next
step is taken at the boundary: buffers by the place where they were found, hyper-parameters by value, every
other object whole.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from holdfast.capture.torch_leaves import as_tensor
from holdfast.capture.torch_plan import Part, Selected, StatePlan, part_of
from holdfast.capture.torch_registry import Tracked
from holdfast.errors import TornSnapshot


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
