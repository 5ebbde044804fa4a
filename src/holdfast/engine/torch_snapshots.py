"""From tracked objects to snapshots: plan once, lease a slot, copy now or behind the next pass."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from holdfast.capture.torch_groups import Sharing
from holdfast.capture.torch_live import live_groups
from holdfast.capture.torch_module import TrackedModule
from holdfast.capture.torch_optimizer import TrackedOptimizer
from holdfast.capture.torch_plan import Part, Selected, StatePlan, part_of, plan_state, take_parts
from holdfast.capture.torch_registry import Tracked
from holdfast.checkpoints.rank_claims import RankClaims
from holdfast.clock import Clock
from holdfast.engine.background import Worker
from holdfast.engine.settings import Settings
from holdfast.engine.torch_deferral import WORTH_IT_BYTES, Deferral, Held, Quiet, Tears
from holdfast.errors import SaveError
from holdfast.format.checksum import CHUNK_BYTES, RunningDigest
from holdfast.staging.copy_choice import CopyChoice, Mode
from holdfast.staging.memory_budget import SlotBudget, available_host_bytes, choose_slots
from holdfast.staging.shared_slots import SharedSlots
from holdfast.staging.slots import HostMemory, Slot, SlotPool
from holdfast.staging.torch_copy import Placed
from holdfast.staging.torch_device import Devices
from holdfast.staging.torch_stager import CopyPlan, Snapshot
from holdfast.staging.torch_stream import StreamedImage
from holdfast.tiers.memory import MemoryTier

log = logging.getLogger("holdfast")
_TIMES_TO_BELIEVE_IT = 2


@dataclass(frozen=True)
class Layout:
    """A plan and the memory that fits it."""

    plan: StatePlan
    copies: CopyPlan
    budget: SlotBudget
    pool: SlotPool | SharedSlots
    deferral: Deferral | None
    # Large host tensors that no optimizer steps: are they the same as at the last save?
    unfenced: tuple[int, ...] = ()


@dataclass
class Taken:
    """A snapshot with everything that a manifest needs to say about it. `sources` are what to write."""

    parts: Sequence[Part]
    plan: StatePlan
    mode: Mode
    snapshot: Snapshot | None
    streamed: Sequence[StreamedImage] = ()
    # Until all ranks have agreed on it: what this rank holds where others are said to hold the same.
    sample: Mapping[str, str] = field(default_factory=dict)

    @property
    def sources(self) -> Sequence[Any]:
        return self.snapshot.images if self.snapshot else self.streamed

    def claims(self) -> RankClaims:
        """What this rank says about tensors it holds with others. On the persist worker, once copied."""
        plan, digests = self.plan, dict[str, dict[str, RunningDigest]]()
        for one in plan.ambiguous:
            place = plan.placements[one.placement]
            digest = digests.setdefault(one.key, {}).setdefault(one.ranks, RunningDigest())
            digest.update(one.said.encode())
            for start in range(place.start, place.stop, CHUNK_BYTES):
                digest.update(self.sources[place.image].view(start, min(start + CHUNK_BYTES, place.stop)))
        contents = {key: {ranks: d.hex() for ranks, d in groups.items()} for key, groups in digests.items()}
        return RankClaims(plan.divisions, self.sample, contents)

    def release(self) -> None:
        if self.snapshot is not None:
            self.snapshot.release()


class Snapshots:
    """Takes snapshots of the tracked objects. Used by the training thread only."""

    def __init__(
        self,
        tracked: Sequence[Tracked],
        settings: Settings,
        clock: Clock,
        copier: Worker,
        *,
        ranks: tuple[int, int] | None = None,
        memory: MemoryTier | None = None,
        needed: Callable[[], Collection[str]] = frozenset,
        devices: Devices | None = None,
        available_bytes: Callable[[], int] = available_host_bytes,
    ) -> None:
        self._tracked = tracked
        self._settings = settings
        self._clock = clock
        self._copier = copier
        self._ranks = ranks
        self._memory = memory
        self._needed = needed
        self._devices = devices or Devices()
        self._available_bytes = available_bytes
        self._layout: Layout | None = None
        self._unfinished: list[Snapshot] = []
        self._changed_behind = 0
        # Of the plan with which all ranks agreed on what they hold alike, and committed.
        self._agreed: Mapping[int, tuple[str, str]] | None = None
        self._tears = Tears()
        self._loose: set[str] = set()
        self._quiet = Quiet()
        self._held: Taken | None = None
        self.choice = CopyChoice(None if settings.copy == "auto" else settings.copy)

    @property
    def budget(self) -> SlotBudget | None:
        return self._layout.budget if self._layout else None

    @property
    def total_bytes(self) -> int | None:
        """Of all images; None before the first save."""
        return self._layout.plan.total_bytes if self._layout else None

    @property
    def slot_available(self) -> bool:
        layout = self._layout
        return layout is None or layout.budget.slots == 0 or layout.pool.available or self._held is not None

    def hold_updates(self) -> None:
        """The fence, called before every optimizer step."""
        self.let_go()
        self._quiet.step_begins()
        unfinished, self._unfinished = self._unfinished, []
        for snapshot in unfinished:
            snapshot.hold_updates()

    def hold(self) -> Taken | None:
        """Begin a snapshot and leave it at that: what may change before the next step is copied, the rest is
        left where it is. The next step or save lets go of it; until then `finish_held` makes it whole.

        Not of a device's memory: that would be copied there at once, and a validation needs the room."""
        self.let_go()
        layout = self._layout
        if layout is None:
            weights = (
                p for t in self._tracked if isinstance(t, TrackedModule) for p in t.module.parameters()
            )
            if any(self._devices.of(weight) is not None for weight in weights):
                return None
        elif layout.budget.slots == 0 or layout.copies.by_device or not layout.pool.available:
            return None
        self._held = self.take(only_begin=True)
        return self._held

    def let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None and held.snapshot is not None:
            held.snapshot.abandon()

    def finish_held(self) -> Taken | None:
        """The state as it was when it was held, copied. Its error says if something has moved since."""
        held, self._held = self._held, None
        if held is not None and held.snapshot is not None:
            held.snapshot.finish()
        return held

    def take(
        self, *, blocking: bool = False, slot_timeout: float = 0.0, only_begin: bool = False
    ) -> Taken | None:
        """Snapshot the state as it is now. None if no slot came free within `slot_timeout`."""
        self.let_go()
        if self._tears.learn() and self._layout is not None:
            # What is held back is worked out anew, in a walk.
            self._layout = replace(self._layout, deferral=None)
        is_compared = False
        if not blocking and (held := self._hold()) is not None:
            is_compared = True
            if not self._look_for_quiet(held.expected):
                return self._take_behind(held, slot_timeout, only_begin=only_begin)
        parts: Sequence[Part] = take_parts(self._tracked, self._loose)
        fitting = self._fit(parts, slot_timeout, is_compared=is_compared)
        if fitting is None:
            return None
        layout, selected, parts = fitting
        sample = {} if self._agreed is layout.plan.alike else layout.plan.sample(parts)
        if layout.budget.slots == 0:
            streams = _streams(layout.plan, selected.tensors)
            return Taken(parts, layout.plan, "blocking", None, streams, sample)
        lease = layout.pool.lease(slot_timeout)
        if lease is None:
            return None
        mode: Mode = "blocking" if blocking else "overlapped" if only_begin else self.choice.next_mode()
        snapshot = Snapshot(
            lease,
            layout.copies,
            selected.tensors,
            self._clock,
            self._settings.wait_limit_seconds,
            counters=selected.counters,
        )
        try:
            snapshot.begin()
        except BaseException:
            snapshot.abandon()
            raise
        if mode == "blocking":
            started = self._clock.monotonic()
            snapshot.finish()
            snapshot.stall_seconds += self._clock.monotonic() - started
        elif not only_begin:
            self._finish_behind(snapshot)
        return Taken(parts, layout.plan, mode, snapshot, sample=sample)

    def _finish_behind(self, snapshot: Snapshot) -> None:
        # A loop without optimizer steps never passes the fence: do not pile up what has ended.
        self._unfinished = [s for s in self._unfinished if not s.wait(0)] + [snapshot]
        self._tears.watch(snapshot)
        self._copier.submit(snapshot.finish)

    def _hold(self) -> Held | None:
        """What must be taken at once, where the rest may be walked behind training."""
        layout = self._layout
        if layout is None or layout.deferral is None or not layout.pool.available:
            return None
        if layout.plan.alike and self._agreed is not layout.plan.alike:
            return None
        if self._changed_behind >= _TIMES_TO_BELIEVE_IT:
            self._layout = replace(layout, deferral=None)
            return None
        return layout.deferral.hold() if self.choice.prefers_overlap else None

    def _take_behind(self, held: Held, slot_timeout: float, *, only_begin: bool) -> Taken | None:
        layout = self._layout
        assert layout is not None
        lease = layout.pool.lease(slot_timeout)
        if lease is None:
            return None
        mode: Mode = "overlapped" if only_begin else self.choice.next_mode()
        taken = Taken((), layout.plan, mode, None)

        def resolve() -> list[torch.Tensor]:
            # Counted as failed until it has succeeded: some optimizers replace their state at every step,
            # and are better walked in front of training.
            self._changed_behind += 1
            taken.parts, found = held.resolve()
            if not _replaced(layout, found, held):
                self._changed_behind -= 1
            return found.tensors

        snapshot = taken.snapshot = Snapshot(
            lease,
            layout.copies,
            held.expected.tensors,
            self._clock,
            self._settings.wait_limit_seconds,
            counters=held.expected.counters,
            resolve=resolve,
        )
        try:
            snapshot.begin()
        except BaseException:
            snapshot.abandon()
            raise
        if not only_begin:
            self._finish_behind(snapshot)
        return taken

    def _fit(
        self, parts: Sequence[Part], slot_timeout: float, *, is_compared: bool
    ) -> tuple[Layout, Selected, Sequence[Part]] | None:
        """The layout for this state, and the state as it fits there; None if the memory of the one before is
        still in use."""
        if self._layout is not None:
            selected = self._layout.plan.select(parts)
            if selected is not None:
                if not is_compared:
                    self._look_for_quiet(selected)
                self._layout = self._follow(self._layout, parts, selected)
                return self._layout, selected, parts
            parts = self._loosen(parts, self._layout.plan)
            # Its memory first: holding both would break the budget.
            if not self._layout.pool.drain(slot_timeout):
                return None
            self._layout = None
        plan = plan_state(parts, self._lazy_ids(), self._sharing())
        selected = plan.select(parts)
        if selected is None:
            raise SaveError(
                "the state changed while it was being planned", hint="is another thread training?"
            )
        self._layout = self._make_layout(parts, plan, selected)
        return self._layout, selected, parts

    def _loosen(self, parts: Sequence[Part], plan: StatePlan) -> list[Part]:
        """Objects without tensors that have changed their form will do so again, as histories and run.extras
        do. From now on that does not lay out everything anew."""
        changed = {
            part.key
            for part, shape in zip(parts, plan.shapes, strict=False)
            if part.keeps_devices and not part.flat.tensors and part.flat.shape != shape
        } - self._loose
        self._loose |= changed
        items = {item.key: item for item in self._tracked}
        return [part_of(items[p.key], p.state, loose=True) if p.key in changed else p for p in parts]

    def _follow(self, layout: Layout, parts: Sequence[Part], selected: Selected) -> Layout:
        """The same images in the same memory, of tensors that may be others than before: what is copied when,
        and where it is found at the next boundary, follows them."""
        plan = layout.plan.deferring(selected, self._lazy_ids())
        deferral, unfenced = layout.deferral, self._unfenced(plan, selected)
        if plan is layout.plan and (deferral is None or deferral.is_same()):
            if deferral is not None:
                deferral.expect(selected)
            return replace(layout, unfenced=unfenced)
        copies = self._copies(plan, selected)
        deferral = self._defer(parts, plan, copies, selected)
        return replace(layout, plan=plan, copies=copies, deferral=deferral, unfenced=unfenced)

    def _look_for_quiet(self, selected: Selected) -> bool:
        """Whether what may be copied later is to be worked out anew, in a walk."""
        layout = self._layout
        return layout is not None and self._quiet.look(selected.tensors, selected.counters, layout.unfenced)

    def _unfenced(self, plan: StatePlan, selected: Selected) -> tuple[int, ...]:
        fenced, tensors = self._fenced_ids(), selected.tensors
        return tuple(
            i
            for i, place in enumerate(plan.placements)
            if place.stop - place.start >= WORTH_IT_BYTES
            and id(selected.counters.get(i, tensors[i])) not in fenced
            and self._devices.of(tensors[i]) is None
        )

    def _copies(self, plan: StatePlan, selected: Selected) -> CopyPlan:
        # Only weights are changed behind our back (averaged ones swapped in, clipped through `.data`).
        weights = {i for i, p in enumerate(plan.placements) if plan.images[p.image].role == "weights"}
        quiet = self._quiet.ids()
        each = {i for i, t in enumerate(selected.tensors) if id(selected.counters.get(i, t)) in quiet}
        return CopyPlan.of(plan.placements, selected.tensors, self._devices, weights, each)

    def _defer(
        self, parts: Sequence[Part], plan: StatePlan, copies: CopyPlan, selected: Selected
    ) -> Deferral | None:
        if copies.by_device or self._changed_behind >= _TIMES_TO_BELIEVE_IT:
            return None
        deferral = Deferral(self._tracked, parts, plan, selected, self._loose)
        return deferral if deferral.is_worthwhile else None

    def _make_layout(self, parts: Sequence[Part], plan: StatePlan, selected: Selected) -> Layout:
        tensors = selected.tensors
        sizes = sum(image.layout.padded_size for image in plan.images)
        budget = choose_slots(sizes, self._available_bytes(), self._settings.memory_limit_bytes)
        (log.info if budget.slots == 2 else log.warning)("holdfast: staging memory: %s", budget.reason)
        on_device = [t for t in tensors if self._devices.of(t) is not None][:1]

        def make_slot(allocate: Callable[[int], HostMemory] | None = None) -> Slot:
            return Slot(
                [image.file for image in plan.images],
                [image.layout for image in plan.images],
                allocate or (lambda nbytes: self._devices.host_memory(on_device, nbytes)),
            )

        copies = self._copies(plan, selected)
        pool = (None if on_device else self._shared(make_slot, plan, sizes)) or SlotPool(
            make_slot, budget.slots
        )
        deferral = self._defer(parts, plan, copies, selected)
        return Layout(plan, copies, budget, pool, deferral, self._unfenced(plan, selected))

    def _shared(
        self, make_slot: Callable[[Callable[[int], HostMemory] | None], Slot], plan: StatePlan, sizes: int
    ) -> SharedSlots | None:
        """Slots in the memory tier, where there is one and it has room."""
        memory = self._memory
        if memory is None:
            return None
        problem = memory.lacks_room(sizes, available_bytes=self._available_bytes())
        if problem is not None:
            log.warning("holdfast: no checkpoints in memory: %s", problem)
            return None

        def make(number: int) -> Slot:
            names = iter([image.file for image in plan.images])

            def allocate(nbytes: int) -> HostMemory:
                shared = memory.allocate(number, next(names), nbytes)
                return HostMemory(shared.view, shared.keep_alive)

            return make_slot(allocate)

        return SharedSlots(
            memory, make, len(memory.slots), newest=memory.newest_slot, needed=self._needed,
            otherwise=lambda: make_slot(None),
        )  # fmt: skip

    def models_at_rest(self) -> set[str]:
        """Models that no tracked optimizer trains; none where no optimizer is tracked, who could tell?"""
        optimizers = [t.optimizer for t in self._tracked if isinstance(t, TrackedOptimizer)]
        stepped = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
        models = [t for t in self._tracked if isinstance(t, TrackedModule)] if optimizers else []
        return {t.key for t in models if not any(id(p) in stepped for p in t.module.parameters())}

    def sealed(self, taken: Taken, name: str) -> None:
        """What this snapshot holds is a checkpoint in memory now. On the persist worker."""
        pool = self._layout.pool if self._layout else None
        if isinstance(pool, SharedSlots) and taken.snapshot is not None:
            pool.sealed(taken.snapshot.lease.slot, name)

    def committed(self, taken: Taken) -> None:
        """Every rank has agreed to this snapshot. On the persist worker."""
        self._agreed = taken.plan.alike

    def _sharing(self) -> Sharing | None:
        if self._ranks is None:
            return None
        return Sharing(*self._ranks, live_groups(self._tracked))

    def _lazy_ids(self) -> set[int]:
        """Tensors that may be copied behind training: nothing has torn them yet."""
        return (self._fenced_ids() | self._quiet.ids()) - self._tears.torn_ids()

    def _fenced_ids(self) -> set[int]:
        """Tensors that only the step of a tracked optimizer changes, so that the fence protects them.

        Frozen parameters are not among them: a momentum encoder inside the model is frozen and moved by the
        forward pass, often through `.data`, which no version counter sees.
        """
        optimizers = [t for t in self._tracked if isinstance(t, TrackedOptimizer)]
        fenced = {ident for t in optimizers for ident in t.fenced_parameters()}
        for tracked in optimizers:
            for state in tracked.optimizer.state.values():
                if isinstance(state, dict):
                    fenced.update(id(v) for v in state.values() if isinstance(v, torch.Tensor))
        return fenced


def _replaced(layout: Layout, found: Selected, held: Held) -> bool:
    return any(found.tensors[i] is not held.expected.tensors[i] for i in layout.copies.watched)


def _streams(plan: StatePlan, tensors: Sequence[torch.Tensor]) -> list[StreamedImage]:
    streams = []
    for index, image in enumerate(plan.images):
        members = [i for i, place in enumerate(plan.placements) if place.image == index]
        places: list[Placed] = [plan.placements[i] for i in members]
        streams.append(StreamedImage(image.file, image.layout, places, [tensors[i] for i in members]))
    return streams
