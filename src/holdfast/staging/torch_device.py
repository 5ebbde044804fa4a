"""Where tensors live, as staging sees it: a seam thin enough to be faked, so that it can be tested without
hardware. No GPU was measured; the accelerator path is written against torch.accelerator."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from holdfast.errors import SaveError
from holdfast.staging.slots import HostMemory, anonymous_memory

Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]


class Ticket(Protocol):
    """A copy that was started."""

    def wait(self, timeout: float) -> bool:
        """Block the calling thread until the copy has ended; False if it did not within `timeout` and may
        still write. SaveError when it ended in failure."""
        ...


class Device(Protocol):
    def free_bytes(self) -> int:
        """Device memory that a snapshot may take right now."""
        ...

    def clone(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies on the device, ordered behind the computation queued so far. May run out of memory."""
        ...

    def copy_to_host(self, pairs: Pairs) -> Ticket:
        """Start copying (device tensor, host view) pairs beside the computation, ordered behind what is
        queued so far. Returns at once. The device tensors may be let go of then."""
        ...

    def hold_updates(self, ticket: Ticket, timeout: float) -> bool:
        """Called before the optimizer changes weights: let the change wait for `ticket`. False if that was
        not possible within `timeout`."""
        ...

    def host_memory(self, nbytes: int) -> HostMemory:
        """Host memory that this device copies into fastest."""
        ...


class AcceleratorDevice:
    """Any device behind torch.accelerator: side-stream copies into pinned memory, ordered by events."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device)
        self._stream: Any = None

    def free_bytes(self) -> int:
        try:
            free, _ = self._module.mem_get_info(self._device)
        except (AttributeError, RuntimeError):
            return 0
        # What the caching allocator holds but does not use can serve a clone as well.
        reserved = self._module.memory_reserved(self._device) - self._module.memory_allocated(self._device)
        return int(free + reserved)

    def clone(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            return [t.detach().clone() for t in tensors]

    def copy_to_host(self, pairs: Pairs) -> _EventTicket:
        if self._stream is None:
            self._stream = torch.Stream(device=self._device)
        self._stream.wait_stream(torch.accelerator.current_stream(self._device))
        with self._stream, torch.no_grad():
            for source, target in pairs:
                target.copy_(source, non_blocking=True)
                # The allocator must not hand this memory out again before the side stream has read it.
                source.record_stream(self._stream)
        # Not the sources: clones that are kept until they are copied are missing in the next forward pass. An
        # allocator that runs out waits for what the side stream still reads.
        return _EventTicket(self._stream.record_event(), keep=[target for _, target in pairs])

    def hold_updates(self, ticket: Ticket, timeout: float) -> bool:
        if not isinstance(ticket, _EventTicket):
            return ticket.wait(timeout)
        # The device waits, the host does not.
        torch.accelerator.current_stream(self._device).wait_event(ticket.event)
        return True

    def host_memory(self, nbytes: int) -> HostMemory:
        pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        view: Any = pinned.numpy()
        return HostMemory(memoryview(view), pinned)


class _EventTicket:
    def __init__(self, event: Any, keep: Sequence[torch.Tensor]) -> None:
        self.event = event
        self._keep: Sequence[torch.Tensor] | None = keep

    def wait(self, timeout: float) -> bool:
        # Event.synchronize has no limit of its own; a helper thread gives it one without spinning.
        ended = threading.Event()
        problems: list[RuntimeError] = []

        def synchronize() -> None:
            try:
                self.event.synchronize()
            except RuntimeError as error:
                problems.append(error)
            ended.set()

        threading.Thread(target=synchronize, name="holdfast-device-wait", daemon=True).start()
        if not ended.wait(timeout):
            return False
        self._keep = None
        if problems:
            raise SaveError(f"copying the state from the device failed: {problems[0]}")
        return True


class Devices:
    """The device of each tensor; None stands for host memory, which staging copies itself."""

    def __init__(self) -> None:
        self._known: dict[torch.device, Device] = {}

    def of(self, tensor: torch.Tensor) -> Device | None:
        if tensor.device.type == "cpu":
            return None
        if tensor.device not in self._known:
            self._known[tensor.device] = AcceleratorDevice(tensor.device)
        return self._known[tensor.device]

    def host_memory(self, tensors: Sequence[torch.Tensor], nbytes: int) -> HostMemory:
        for tensor in tensors:
            device = self.of(tensor)
            if device is not None:
                return device.host_memory(nbytes)
        return anonymous_memory(nbytes)
