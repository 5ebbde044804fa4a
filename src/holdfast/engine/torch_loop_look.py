"""A look into the frames of the loop, at the first boundaries: what changes there and is not tracked?

Whoever leaves a scheduler, a target network or a counter out resumes another run, in silence. Looking costs a
few milliseconds, a few times; then nothing of it is left.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from holdfast.capture.torch_module import TrackedModule
from holdfast.capture.torch_object import TrackedObject
from holdfast.capture.torch_optimizer import TrackedOptimizer
from holdfast.capture.torch_registry import Tracked
from holdfast.engine.loop_frames import Place, user_scopes
from holdfast.engine.plain_attributes import has, own
from holdfast.engine.run_state import RunState
from holdfast.engine.torch_loop_marks import sampled
from holdfast.engine.torch_loop_things import Thing, hidden_in_modules, kind_of, things_in

log = logging.getLogger("holdfast")
# Of this process. What changes seldom, such as a target network, is seen at one of the later ones.
LOOKS_AT = (1, 2, 3, 4, 8, 16, 32, 64)
_REPLACED_OFTEN = ("value", "hidden")


@dataclass(frozen=True)
class Untracked:
    """Something the loop changes that no checkpoint holds, and what to write."""

    name: str
    kind: str
    called: str
    place: Place
    fix: str

    def __str__(self) -> str:
        return f"{self.name} ({self.called}, {self.place}): {self.fix}"


class Coverage:
    """What the checkpoints of a run hold: asked of a thing, it says whether that is part of it."""

    def __init__(
        self, tracked: Sequence[Tracked], state: RunState, loaders: Callable[[], Iterable[Any]]
    ) -> None:
        self._extras = state.extras
        self._memories = state.memories
        self.loaders = loaders
        self.modules = [(t.key, t.module) for t in tracked if isinstance(t, TrackedModule)]
        self._optimizers = [t.optimizer for t in tracked if isinstance(t, TrackedOptimizer)]
        self._others = [t.obj for t in tracked if isinstance(t, TrackedObject)]
        self._tensors: set[int] = set()

    def refresh(self) -> list[Any]:
        """Before a look: which tensors are held now. Gives the objects that nobody needs to look at."""
        self._tensors = {id(t) for _, module in self.modules for t in _tensors_of(module)}
        for obj in self._others:
            if not isinstance(obj, LRScheduler):
                # What it holds itself, not what it can reach: an EMA knows its model and does not save it.
                self._tensors |= {id(t) for t in _tensors_in(own(obj), 3)}
        tracked = [*(module for _, module in self.modules), *self._optimizers, *self._others]
        return [*tracked, self._extras, *self._memories.values, *self._parts_of_data()]

    def holds(self, thing: Thing) -> bool:
        value, kind = thing.value, thing.kind
        if kind == "module":
            tensors = {id(t) for t in _tensors_of(value)}
            return not tensors or tensors <= self._tensors or self._is_inside(value)
        if kind == "optimizer":
            return self._has_optimizer(value)
        if kind in ("value", "hidden"):
            if value is self._extras:
                return True
            inside = {id(tensor) for tensor in _tensors_in(value, 4)}
            if inside and inside <= self._tensors:
                return True
            return self._is_extra(thing) or self._is_inside(value, containers=True)
        return self._is_inside(value) or (kind == "generator" and self._feeds_a_loader(value))

    def _parts_of_data(self) -> list[Any]:
        """What the loaders that are read through the run consist of: their position is kept for them."""
        names = ("sampler", "batch_sampler", "generator", "collate_fn")
        return [
            part for loader in self.loaders() for n in names if (part := getattr(loader, n, None)) is not None
        ]

    def schedules(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether something tracked moves this optimizer's learning rate."""
        return any(own(obj).get("optimizer") is optimizer for obj in self._others)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return self._optimizers

    def _has_optimizer(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(
            known is optimizer or known.state is optimizer.state
            or any(item is optimizer for item in own(known).values())
            for known in self._optimizers
        ) or any(
            own(obj).get("optimizer") is optimizer and not isinstance(obj, LRScheduler)
            and not has(obj, "last_epoch")
            for obj in self._others
        )  # fmt: skip

    def _is_inside(self, value: Any, *, containers: bool = False) -> bool:
        if containers and isinstance(value, (int, float, str, bytes, complex, type(None))):
            return False
        roots = [*self._others, *self._optimizers, *(module for _, module in self.modules)]
        if any(root is value for root in roots):
            return True
        if isinstance(value, (nn.Module, torch.Tensor)):
            return False  # an optimizer reaches the weights that it moves, and does not save them
        return any(_reaches(root, value, 3) for root in roots)

    def _feeds_a_loader(self, generator: Any) -> bool:
        return any(
            _reaches(loader, generator, 3) or _reaches(getattr(loader, "dataset", None), generator, 3)
            for loader in self.loaders()
        )

    def _is_extra(self, thing: Thing) -> bool:
        if thing.name.split(".")[-1] in self._extras:
            return True
        mark = sampled(thing.value)
        return any(
            value is thing.value or sampled(value) == mark or _has_item(value, thing.value)
            for value in [*self._extras.values(), *self._memories.values]
        )


class Look:
    """Called at boundaries; `is_over` when there is nothing more to see."""

    def __init__(
        self,
        coverage: Coverage,
        made_at: Place | None,
        ours: Iterable[Any],
        named: Callable[[torch.optim.Optimizer], None] = lambda _: None,
    ) -> None:
        self._coverage = coverage
        self._named = named
        self._made_at = made_at
        self._ours = list(ours)
        self._boundaries = 0
        self._first: dict[str, tuple[Thing, str]] = {}
        self._said: set[str] = set()
        self.found: list[Untracked] = []
        self.seconds = 0.0

    @property
    def is_over(self) -> bool:
        return self._boundaries >= LOOKS_AT[-1]

    def passed(self) -> None:
        """It only looks."""

    def boundary(self, loss: Any) -> None:
        self._boundaries += 1
        if self._boundaries in LOOKS_AT:
            started = time.perf_counter()
            try:
                self._look()
            except Exception as error:  # noqa: BLE001  said at once; no look is worth a training
                log.warning("holdfast: could not look at this loop (%r): please report it", error)
                self._boundaries = LOOKS_AT[-1]
            self.seconds += time.perf_counter() - started
        if self.is_over:
            self._first = {}
        elif self._boundaries == LOOKS_AT[3]:
            # Nobody's batches and lists are kept alive any longer; a mark is enough for what is carried.
            self._first = {n: (_without_value(t), mark) for n, (t, mark) in self._first.items()}

    def _look(self) -> None:
        things = things_in(user_scopes(sys._getframe(1)), [*self._ours, *self._coverage.refresh()])
        for thing in self._hidden():
            things.setdefault(thing.name, thing)
        things = {name: thing for name, thing in things.items() if not self._coverage.holds(thing)}
        new = [u for u in self._untracked(things) if u.name not in self._said]
        for name, thing in things.items():
            has_graph = isinstance(thing.value, torch.Tensor) and thing.value.grad_fn is not None
            # Activations are not kept alive: of what hangs on a graph, only its mark.
            kept = _without_value(thing) if has_graph else thing
            self._first.setdefault(name, (kept, sampled(thing.value)))
        self._said.update(u.name for u in new)
        new = list(_as_wholes(new, things))
        self.found += new
        if new:
            log.warning("%s", message(new, self._made_at))
        for untracked in new:
            if untracked.kind == "optimizer" and untracked.name in things:
                self._named(things[untracked.name].value)

    def _untracked(self, things: dict[str, Thing]) -> Iterator[Untracked]:
        schedulers = [t for t in things.values() if t.kind == "scheduler"]
        for name, thing in things.items():
            if self._matters(name, thing):
                yield Untracked(thing.name, thing.kind, thing.called, thing.place, fix_of(thing))
        if not schedulers:
            yield from self._unseen_schedulers()

    def _hidden(self) -> Iterator[Thing]:
        place = self._made_at or Place("?", 0)
        for key, module in self._coverage.modules:
            yield from hidden_in_modules(key, module, place)

    def _matters(self, name: str, thing: Thing) -> bool:
        if thing.kind == "loader":
            return not any(thing.value is loader for loader in self._coverage.loaders())
        if thing.kind == "scheduler" or (thing.kind == "optimizer" and self._boundaries > 1):
            return self._boundaries > 1
        if name not in self._first:
            return False
        before, mark = self._first[name]
        if thing.kind == "iterator" and thing.is_carried:
            return True
        if mark == sampled(thing.value):
            return False
        if thing.kind in _REPLACED_OFTEN:
            # The same object with new content, or a new one that the loop makes out of the old one.
            in_place = before.value is thing.value and not isinstance(thing.value, (int, float, str, bytes))
            return thing.is_carried or in_place
        return True

    def _unseen_schedulers(self) -> Iterator[Untracked]:
        for optimizer in self._coverage.optimizers:
            if "initial_lr" in optimizer.param_groups[0] and not self._coverage.schedules(optimizer):
                place = self._made_at or Place("?", 0)
                fix = "Run(..., scheduler=scheduler)"
                yield Untracked("a scheduler", "scheduler", type(optimizer).__name__, place, fix)


def message(found: Sequence[Untracked], made_at: Place | None) -> str:
    """One warning for all of it."""
    where = "" if made_at is None else f" ({made_at})"
    lines = [f"  {untracked}" for untracked in found]
    return "\n".join(
        [
            f"holdfast: this loop changes what the run{where} does not track, so a restart begins it anew:",
            *lines,
            "  what is only printed can stay so; holdfast rehearse -- python ... tries what matters; "
            "Run(check_loop=False) says nothing",
        ]
    )


def fix_of(thing: Thing) -> str:
    """The line to write."""
    plain = thing.name.split(".")[-1].split("[")[0]
    if thing.kind == "loader":
        return f"for ... in run.batches({thing.name})"
    if thing.kind == "iterator":
        return "read the loader through run.batches(loader) or run.steps(count, over=loader)"
    if thing.kind == "generator":
        return f'run.extras["{plain}"] = its state before run.end_step; put back where run.resumed'
    if thing.kind == "hidden":
        return f'register_buffer("{plain}", ...) or run.extras["{plain}"]'
    if thing.kind == "value":
        return f"kept = run.remember({plain}=...) behind `with`, and kept.{plain} for {thing.name}"
    return f"Run(..., {plain}={thing.name})"


def _as_wholes(found: Sequence[Untracked], things: Mapping[str, Thing]) -> Iterator[Untracked]:
    """An object of which several plain attributes change (an environment, say) is named as one."""
    parts: dict[str, list[Untracked]] = {}
    for untracked in found:
        owner = untracked.name.rpartition(".")[0]
        whole = (
            untracked.kind == "value" and owner not in ("", "self") and owner == things[untracked.name].owner
        )
        parts.setdefault(owner if whole else untracked.name, []).append(untracked)
    for owner, several in parts.items():
        if len(several) == 1:
            yield several[0]
            continue
        first = several[0]
        plain = owner.split(".")[-1]
        fix = f"kept = run.remember({plain}={owner}) behind `with`, or Run(...) if it has a state_dict"
        called = f"its {', '.join(u.name.rpartition('.')[2] for u in several)}"
        yield Untracked(owner, "object", called, things[first.name].owner_place or first.place, fix)


def _without_value(thing: Thing) -> Thing:
    return replace(thing, value=None)


def _tensors_of(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _tensors_in(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (nn.Module, torch.optim.Optimizer)) or depth == 0:
        return
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors_in(item, depth - 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(item, depth - 1)


def _reaches(root: Any, wanted: Any, depth: int) -> bool:
    if root is wanted:
        return True
    if depth == 0 or isinstance(root, (str, bytes, int, float, torch.Tensor)):
        return False
    if isinstance(root, Mapping):
        inner: Iterable[Any] = list(root.values())[:256]
    elif isinstance(root, (list, tuple, set)):
        inner = list(root)[:256]
    else:
        # What a scheduler moves and an optimizer updates is not saved with it.
        inner = [v for k, v in own(root).items() if k not in ("optimizer", "dataset")]
    return any(_reaches(item, wanted, depth - 1) for item in inner)


def _has_item(value: Any, wanted: Any) -> bool:
    items = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    )
    return any(item is wanted for item in items)


__all__ = ["LOOKS_AT", "Coverage", "Look", "Untracked", "fix_of", "kind_of", "message"]
