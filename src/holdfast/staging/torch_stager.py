"""One snapshot: the state of one step boundary on its way into a slot.

What the forward pass may change is copied before control returns; what only a fenced optimizer step changes
is copied behind the next forward and backward pass. A tensor whose version moved during that copy means a
torn snapshot, which is thrown away and reported, never written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, SaveError, TornSnapshot
from holdfast.staging.slots import ImageBytes, Lease
from holdfast.staging.torch_copy import CopyGroup, Placed, copy_group, host_view
from holdfast.staging.torch_device import Device, Devices, Pairs, Ticket

# A device-side snapshot must leave this share of the free device memory alone: running out of memory in the
# next forward pass would end the training that we are here to protect.
DEVICE_MARGIN = 0.1


@dataclass(frozen=True)
class CopyPlan:
    """Which tensors are copied now and which later, on the host and per device. Made once per layout."""

    places: Sequence[Placed]
    now: CopyGroup
    later: CopyGroup
    lazy: tuple[int, ...]
    by_device: tuple[tuple[Device, tuple[int, ...], tuple[int, ...]], ...]

    @staticmethod
    def of(places: Sequence[Placed], tensors: Sequence[torch.Tensor], devices: Devices) -> CopyPlan:
        positions: dict[int, tuple[Device | None, list[int], list[int]]] = {}
        for i, (place, tensor) in enumerate(zip(places, tensors, strict=True)):
            device = devices.of(tensor)
            _, now, later = positions.setdefault(id(device), (device, [], []))
            (later if place.lazy else now).append(i)
        _, now, later = positions.pop(id(None), (None, [], []))
        return CopyPlan(
            places=places,
            now=CopyGroup.of(now, places),
            later=CopyGroup.of(later, places),
            lazy=tuple(i for i, place in enumerate(places) if place.lazy),
            by_device=tuple((d, tuple(a), tuple(b)) for d, a, b in positions.values() if d is not None),
        )


class Snapshot:
    """The copy of one step's state. `begin` on the training thread, `finish` on any; then `images`."""

    def __init__(
        self,
        lease: Lease,
        plan: CopyPlan,
        tensors: Sequence[torch.Tensor],
        clock: Clock,
        wait_limit: float,
    ) -> None:
        self.lease = lease
        self.stall_seconds = 0.0
        self.copy_seconds = 0.0
        self.error: HoldfastError | None = None
        self._plan = plan
        self._tensors: Sequence[torch.Tensor] = tensors
        self._clock = clock
        self._wait_limit = wait_limit
        self._versions: list[int] = []
        self._after: list[Callable[[], None]] = []
        self._held: list[tuple[Device, Ticket]] = []
        # Set when no live tensor is read any more, whether or not the copy succeeded.
        self._detached = threading.Event()

    @property
    def images(self) -> list[ImageBytes]:
        return self.lease.slot.images

    def begin(self) -> None:
        """Copy what may change soon, note the versions of the rest. Raises SaveError."""
        started = self._clock.monotonic()
        self._versions = [_version(self._tensors[i]) for i in self._plan.lazy]
        copy_group(self._plan.now, self._plan.places, self._tensors, self.lease.slot)
        for device, now, later in self._plan.by_device:
            self._begin_on(device, now, later)
        self.stall_seconds += self._clock.monotonic() - started

    def _begin_on(self, device: Device, now: Sequence[int], later: Sequence[int]) -> None:
        everything = (*now, *later)
        need = sum(self._plan.places[i].stop - self._plan.places[i].start for i in everything)
        if need <= device.free_bytes() * (1 - DEVICE_MARGIN):
            try:
                clones = device.clone([self._tensors[i] for i in everything])
            except (torch.OutOfMemoryError, MemoryError):
                pass  # Measured free a moment ago, taken since: copy straight to the host instead.
            else:
                pairs = self._pairs(clones, everything)
                self._after.append(lambda: device.copy_to_host(pairs).wait(self._wait_limit))
                return
        device.copy_to_host(self._pairs_of(now)).wait(self._wait_limit)
        ticket = device.copy_to_host(self._pairs_of(later))
        self._held.append((device, ticket))
        self._after.append(lambda: ticket.wait(self._wait_limit))

    def _pairs_of(self, positions: Sequence[int]) -> Pairs:
        return self._pairs([self._tensors[i] for i in positions], positions)

    def _pairs(self, sources: Sequence[torch.Tensor], positions: Sequence[int]) -> Pairs:
        slot, places = self.lease.slot, self._plan.places
        return [(t, host_view(slot, places[i])) for t, i in zip(sources, positions, strict=True)]

    def finish(self) -> None:
        """Copy the rest and check that nothing moved. Never raises: the outcome is in `error`."""
        started = self._clock.monotonic()
        try:
            copy_group(self._plan.later, self._plan.places, self._tensors, self.lease.slot)
            for complete in self._after:
                complete()
            self._require_untouched()
        except HoldfastError as error:
            self.error = error
        except (RuntimeError, MemoryError, OSError) as error:
            self.error = SaveError(f"copying the state failed: {error}")
        finally:
            self.copy_seconds = self._clock.monotonic() - started
            self._tensors, self._after, self._held = (), [], []
            self._detached.set()

    def _require_untouched(self) -> None:
        for i, before in zip(self._plan.lazy, self._versions, strict=True):
            if _version(self._tensors[i]) != before:
                raise TornSnapshot(
                    f"{self._plan.places[i].label} changed while it was being copied",
                    hint="something other than a tracked optimizer changes it; the save is taken again",
                )

    def hold_updates(self) -> None:
        """The fence: called before an optimizer changes weights."""
        if self._detached.is_set():
            return
        started = self._clock.monotonic()
        held = list(self._held)
        if held and not (self._plan.later.small or self._plan.later.large):
            for device, ticket in held:
                device.hold_updates(ticket, self._wait_limit)
        else:
            # Past the limit training goes on; the version check then throws this snapshot away.
            self._detached.wait(self._wait_limit)
        self.stall_seconds += self._clock.monotonic() - started

    def wait(self, timeout: float) -> bool:
        """Whether no live tensor is read any more."""
        return self._detached.wait(timeout)


def _version(tensor: torch.Tensor) -> int:
    # Inference tensors carry no counter and cannot be changed in place outside inference mode.
    return -1 if tensor.is_inference() else tensor._version
