"""One snapshot: the state of one step boundary on its way into a slot.

What the forward pass may change is copied before control returns; what only a fenced optimizer step changes
is copied behind the next forward and backward pass. A tensor whose version moved during that copy means a
torn snapshot, which is thrown away and reported, never written.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

import torch

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, SaveError, TornSnapshot
from holdfast.staging.slots import ImageBytes, Lease
from holdfast.staging.torch_copy import CopyGroup, Placed, copy_group, host_view, source_of
from holdfast.staging.torch_device import Device, Devices, Pairs, Ticket
from holdfast.staging.torch_guard import Guard, Note

log = logging.getLogger("holdfast")

# How often a tensor was changed, and the tensor that it is a part of.
Version = int | tuple[int, int]

# A device-side snapshot must leave this share of the free device memory alone: running out of memory in the
# next forward pass would end the training that we are here to protect.
DEVICE_MARGIN = 0.1


@dataclass(frozen=True)
class DeviceCopies:
    """Of one device: what is copied now and what later, and a sample of the latter."""

    device: Device
    now: tuple[int, ...]
    later: tuple[int, ...]
    guard: Guard


@dataclass(frozen=True)
class CopyPlan:
    """Which tensors are copied now and which later, on the host and per device. Made once per layout."""

    places: Sequence[Placed]
    now: CopyGroup
    later: CopyGroup
    # Those host tensors that are copied later and whose versions are therefore watched.
    watched: tuple[int, ...]
    guard: Guard
    by_device: tuple[DeviceCopies, ...]

    @staticmethod
    def of(
        places: Sequence[Placed],
        tensors: Sequence[torch.Tensor],
        devices: Devices,
        guarded: Container[int] | None = None,
        each_guarded: Container[int] = (),
    ) -> CopyPlan:
        positions: dict[int, tuple[Device | None, list[int], list[int]]] = {}
        for i, (place, tensor) in enumerate(zip(places, tensors, strict=True)):
            device = devices.of(tensor)
            _, now, later = positions.setdefault(id(device), (device, [], []))
            (later if place.lazy else now).append(i)
        _, now, later = positions.pop(id(None), (None, [], []))
        group = CopyGroup.of(later, places)
        return CopyPlan(
            places=places,
            now=CopyGroup.of(now, places),
            later=group,
            watched=tuple(later),
            guard=Guard.of(group, places, guarded, each_guarded),
            by_device=tuple(
                DeviceCopies(d, tuple(a), tuple(b), Guard.of(CopyGroup.of(b, places), places, guarded))
                for d, a, b in positions.values()
                if d is not None
            ),
        )


@dataclass(frozen=True)
class _Held:
    """A copy straight from live device tensors: updates must queue behind it."""

    device: Device
    ticket: Ticket
    positions: Sequence[int]
    versions: Sequence[Version]
    # What the sample was at the boundary, brought to the host beside the copy.
    guard: Guard
    sample: torch.Tensor | None


class Snapshot:
    """The copy of one step's state. `begin` on the training thread, `finish` on any; then `images`."""

    def __init__(
        self,
        lease: Lease,
        plan: CopyPlan,
        tensors: Sequence[torch.Tensor],
        clock: Clock,
        wait_limit: float,
        *,
        counters: Mapping[int, torch.Tensor] | None = None,
        resolve: Callable[[], Sequence[torch.Tensor]] | None = None,
    ) -> None:
        """`counters` are tensors that some of `tensors`, by index, are parts of: torch counts a change at the
        one through which it was made, so both are watched.

        With `resolve`, what is copied later is only expected to be in `tensors`: `finish` looks it up, and
        a tensor that is not the expected one means a torn snapshot."""
        self.lease = lease
        self.stall_seconds = 0.0
        self.copy_seconds = 0.0
        self.error: HoldfastError | None = None
        # What changed during the copy, and the share of all bytes that were copied later.
        self.torn: list[torch.Tensor] = []
        self.torn_share = 0.0
        self._plan = plan
        self._tensors: Sequence[torch.Tensor] = tensors
        self._counters: Mapping[int, torch.Tensor] = counters or {}
        self._resolve = resolve
        self._clock = clock
        self._wait_limit = wait_limit
        self._versions: list[Version] = []
        self._noted: Sequence[Note | None] = ()
        # Copies that a device has not reported as ended: until then it may write into the slot.
        self._open: list[Ticket] = []
        self._hung = False
        self._unwanted = False
        self._held: list[_Held] = []
        self._sampled: list[_Held] = []
        self._fence_problem: HoldfastError | None = None
        self._fencing = threading.Lock()
        # Set when no live host tensor is read any more, whether or not the copy succeeded.
        self._host_done = threading.Event()
        self._ended = threading.Event()

    @property
    def images(self) -> list[ImageBytes]:
        return self.lease.slot.images

    def begin(self) -> None:
        """Copy what may change soon, note the versions of the rest. Raises SaveError."""
        started = self._clock.monotonic()
        self._versions = self._versions_of(self._plan.watched)
        self._noted = self._plan.guard.note(self._tensors)
        copy_group(self._plan.now, self._plan.places, self._tensors, self.lease.slot)
        for copies in self._plan.by_device:
            self._begin_on(copies)
        self.stall_seconds += self._clock.monotonic() - started

    def _begin_on(self, copies: DeviceCopies) -> None:
        device, now, later = copies.device, copies.now, copies.later
        everything = (*now, *later)
        need = sum(self._plan.places[i].stop - self._plan.places[i].start for i in everything)
        if need <= device.free_bytes() * (1 - DEVICE_MARGIN):
            try:
                clones = device.clone([source_of(self._tensors[i]) for i in everything])
            except (torch.OutOfMemoryError, MemoryError):
                pass  # Measured free a moment ago, taken since: copy straight to the host instead.
            else:
                # Training may change its tensors from here on: these copies are ours alone. Started on this
                # thread, because the copy is ordered behind the stream that is current here.
                self._start(device, self._pairs(clones, everything))
                return
        self._await(self._start(device, self._pairs_of(now)))
        # Gathered by the computation's own stream, in front of whatever changes weights next.
        spots, sample = copies.guard.gather(self._tensors), None
        pairs = list(self._pairs_of(later))
        if spots is not None:
            sample = self._room_for_sample(device, spots.numel())
            pairs.append((spots, sample))
        ticket = self._start(device, pairs)
        held = _Held(device, ticket, later, self._versions_of(later), copies.guard, sample)
        self._held.append(held)
        self._sampled.append(held)

    def _room_for_sample(self, device: Device, nbytes: int) -> torch.Tensor:
        views = self.lease.slot.views
        key = ("sample", id(device), nbytes)
        if key not in views:
            views[key] = torch.frombuffer(device.host_memory(nbytes).view, dtype=torch.uint8, count=nbytes)
        room: torch.Tensor = views[key]
        return room

    def _start(self, device: Device, pairs: Pairs) -> Ticket:
        ticket = device.copy_to_host(pairs)
        self._open.append(ticket)
        return ticket

    def _await(self, ticket: Ticket) -> None:
        try:
            ended = ticket.wait(self._wait_limit)
        except SaveError:
            self._open.remove(ticket)
            raise
        if not ended:
            self._hung = True
            raise SaveError(
                f"copying the state from the device did not finish within {self._wait_limit:.0f} s"
            )
        self._open.remove(ticket)

    def _pairs_of(self, positions: Sequence[int]) -> Pairs:
        return self._pairs([self._tensors[i] for i in positions], positions)

    def _pairs(self, sources: Sequence[torch.Tensor], positions: Sequence[int]) -> Pairs:
        slot, places = self.lease.slot, self._plan.places
        return [(source_of(t), host_view(slot, places[i])) for t, i in zip(sources, positions, strict=True)]

    def finish(self) -> None:
        """Copy the rest and check that nothing moved. Never raises: the outcome is in `error`."""
        started = self._clock.monotonic()
        try:
            self._look_up()
            copy_group(self._plan.later, self._plan.places, self._tensors, self.lease.slot)
            self._require_untouched(self._plan.watched, self._versions)
            self._require_as_noted(self._plan.guard, self._noted)
            self._host_done.set()
            for ticket in list(self._open):
                self._await(ticket)
            self._settle_held()
        except HoldfastError as error:
            self.error = error
        except (RuntimeError, MemoryError, OSError) as error:
            self.error = SaveError(f"copying the state failed: {error}")
        finally:
            self.copy_seconds = self._clock.monotonic() - started
            with self._fencing:
                self._tensors, self._counters, self._resolve = (), {}, None
                self._held, self._sampled = [], []
                self._host_done.set()
                self._ended.set()
            if self._unwanted:
                self.abandon()

    def _look_up(self) -> None:
        if self._resolve is None:
            return
        expected, self._tensors = self._tensors, self._resolve()
        for i in self._plan.watched:
            if self._tensors[i] is not expected[i]:
                raise TornSnapshot(f"{self._plan.places[i].label} was replaced right after the step")

    def _settle_held(self) -> None:
        with self._fencing:
            if self._fence_problem is not None:
                raise self._fence_problem
            # Those that the fence has not seen yet; those that it has may have been updated since, in order.
            for held in self._held:
                self._require_untouched(held.positions, held.versions)
        for held in self._sampled:
            if held.sample is not None:
                noted = held.guard.gathered(self._tensors, held.sample.numpy().tobytes())
                self._require_as_noted(held.guard, noted)

    def _require_as_noted(self, guard: Guard, noted: Sequence[Note | None]) -> None:
        changed = guard.changed(noted, self.lease.slot, self._plan.places)
        if changed:
            self._tore(changed)
            raise TornSnapshot(
                f"{self._plan.places[changed[0]].label} changed, through .data perhaps, before it was copied",
                hint="end the step after such a change, or use copy='blocking'; the save is taken again",
            )

    def _versions_of(self, positions: Sequence[int]) -> list[Version]:
        tensors = self._tensors
        if not self._counters:
            with contextlib.suppress(RuntimeError):
                return [tensors[i]._version for i in positions]
        return [self._version_at(i) for i in positions]

    def _version_at(self, i: int) -> Version:
        counter = self._counters.get(i)
        own = _version(self._tensors[i])
        return own if counter is None else (own, _version(counter))

    def _require_untouched(self, positions: Sequence[int], versions: Sequence[Version]) -> None:
        changed = [i for i, before in zip(positions, versions, strict=True) if self._version_at(i) != before]
        if changed:
            self._tore(changed)
            raise TornSnapshot(
                f"{self._plan.places[changed[0]].label} changed while it was being copied",
                hint="something other than a tracked optimizer changes it; the save is taken again",
            )

    def _tore(self, positions: Sequence[int]) -> None:
        places = self._plan.places
        later = [i for i, place in enumerate(places) if place.lazy]
        total = sum(places[i].stop - places[i].start for i in later)
        self.torn = [self._counters.get(i, self._tensors[i]) for i in positions]
        self.torn_share = sum(places[i].stop - places[i].start for i in positions) / max(total, 1)

    def hold_updates(self) -> None:
        """The fence: called before an optimizer changes weights. Never raises: training goes on, and a
        snapshot that could not be protected is thrown away."""
        if self._ended.is_set():
            return
        started = self._clock.monotonic()
        # Past the limit training goes on; the version check then throws this snapshot away.
        self._host_done.wait(self._wait_limit)
        with self._fencing:
            held, self._held = self._held, []
            for one in held:
                self._fence_problem = self._fence_problem or self._hold(one)
        self.stall_seconds += self._clock.monotonic() - started

    def _hold(self, one: _Held) -> HoldfastError | None:
        try:
            # Before the update is queued: on an accelerator versions move when work is queued, not when done.
            self._require_untouched(one.positions, one.versions)
            if one.device.hold_updates(one.ticket, self._wait_limit):
                return None
        except HoldfastError as error:
            return error
        except RuntimeError as error:
            return SaveError(f"the device cannot hold updates back: {error}")
        return TornSnapshot("the device did not finish its copy in time, and training went on")

    def wait(self, timeout: float) -> bool:
        """Whether no live tensor is read any more."""
        return self._ended.wait(timeout)

    def release(self) -> None:
        """Give the slot back; if it is still being copied into, as soon as that has ended."""
        with self._fencing:
            self._unwanted = not self._ended.is_set()
        if not self._unwanted:
            self.abandon()

    def abandon(self) -> None:
        """Give the slot back at once; not if a device may still write into it: that would mix two steps."""
        for ticket in list(self._open) if not self._hung else ():
            # Another device's copy, begun before this snapshot was given up.
            with contextlib.suppress(SaveError):
                self._await(ticket)
        if self._open:
            log.error("holdfast: a device did not end its copy; its staging memory stays reserved")
        else:
            self.lease.release()


def _version(tensor: torch.Tensor) -> int:
    # Inference tensors carry no counter and cannot be changed in place outside inference mode.
    return -1 if tensor.is_inference() else tensor._version
