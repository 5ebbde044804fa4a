"""A pretended accelerator for testing what cannot be tested without one: it copies when told to, runs out of
memory, fails and hangs on demand, and notices races. Its tensors are CPU tensors; its time is `step`."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence

import torch

from holdfast.errors import SaveError
from holdfast.staging.slots import HostMemory, anonymous_memory
from holdfast.staging.torch_device import Device, Devices, Pairs, Ticket

_POISON = 0xA5


class Race(AssertionError):
    """Someone touched memory that a copy still needed."""


class FakeTicket:
    """Satisfies Ticket. `done` says whether the copy has ended, one way or the other."""

    def __init__(self, pairs: Pairs) -> None:
        # The memory and not the tensors: a clone that nobody else holds counts as given back, as on a device
        # whose allocator waits for what a stream still reads.
        self.pairs = [(source.detach(), target) for source, target in pairs]
        self.versions = [source._version for source, _ in self.pairs]
        self.held = False
        self.error: SaveError | None = None
        self._ended = threading.Event()

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout: float) -> bool:
        if not self._ended.wait(timeout):
            return False
        if self.error is not None:
            raise self.error
        return True

    def end(self, error: SaveError | None = None) -> None:
        self.error = error
        self._ended.set()


class FakeDevice:
    """Satisfies Device.

    Copies queue up. `step(n)` moves up to n bytes, `run()` all of them; the next `at_once` copies are done
    before `copy_to_host` returns, and with `eager=True` a thread of the device's own does them all. `free` is
    the device memory left; clones take from it and give it back when they are dropped.
    `fail_next("clone" | "copy" | "hold", error)` makes the next such call fail, and `hang=True` makes copies
    never end. `races` lists what the race detector saw: a source that was written while its copy was pending
    and nobody had called `hold_updates`.
    """

    def __init__(self, *, free: int = 1 << 40, eager: bool = False) -> None:
        self.free = free
        self.hang = False
        self.at_once = 0
        self.races: list[str] = []
        self.calls: list[str] = []
        self._eager = eager
        self._failures: dict[str, Exception] = {}
        self._queue: deque[FakeTicket] = deque()
        self._moving = threading.RLock()

    def fail_next(self, verb: str, error: Exception) -> None:
        self._failures[verb] = error

    def _note(self, verb: str) -> None:
        self.calls.append(verb)
        error = self._failures.pop(verb, None)
        if error is not None:
            raise error

    # ---- Device

    def free_bytes(self) -> int:
        return self.free

    def clone(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        self._note("clone")
        need = sum(t.nbytes for t in tensors)
        if need > self.free:
            raise torch.OutOfMemoryError(f"the fake device has {self.free} bytes, not {need}")
        with torch.no_grad():
            clones = [t.detach().clone() for t in tensors]
        for clone in clones:
            self.free -= clone.nbytes
            weakref.finalize(clone, self._give_back, clone.nbytes)
        return clones

    def _give_back(self, nbytes: int) -> None:
        self.free += nbytes

    def copy_to_host(self, pairs: Pairs) -> FakeTicket:
        ticket = FakeTicket(pairs)
        for _, target in ticket.pairs:
            # Whoever reads the image too early reads this.
            _bytes(target).fill_(_POISON)
        try:
            self._note("copy")
        except SaveError as error:
            ticket.end(error)
            return ticket
        with self._moving:
            self._queue.append(ticket)
        if self.at_once:
            self.at_once -= 1
            self.run()
        elif self._eager:
            threading.Thread(target=self.run, name="fake-device", daemon=True).start()
        return ticket

    def hold_updates(self, ticket: Ticket, timeout: float) -> bool:
        assert isinstance(ticket, FakeTicket)
        self._note("hold")
        ticket.held = True
        if self.hang:
            return ticket.wait(timeout)
        # A device runs in order: an update that is queued behind the copy finds it done.
        while not ticket.done:
            self.step(1 << 62)
        return ticket.wait(0)

    def host_memory(self, nbytes: int) -> HostMemory:
        self.calls.append("host_memory")
        return anonymous_memory(nbytes)

    # ---- what a test does

    @property
    def pending(self) -> int:
        return len(self._queue)

    def step(self, nbytes: int) -> None:
        """Move up to `nbytes`; a tensor moves when the whole of it fits."""
        with self._moving:
            while self._queue and not self.hang:
                ticket = self._queue[0]
                while ticket.pairs:
                    source, target = ticket.pairs[0]
                    if source.nbytes > nbytes:
                        return
                    self._look_for_races(ticket)
                    with torch.no_grad():
                        target.copy_(source)
                    nbytes -= source.nbytes
                    ticket.pairs.pop(0)
                    ticket.versions.pop(0)
                self._queue.popleft()
                ticket.end()

    def run(self) -> None:
        """Let every queued copy finish."""
        self.step(1 << 62)

    def look(self) -> None:
        """Raise Race if a source of a pending copy has been written without `hold_updates`."""
        with self._moving:
            for ticket in self._queue:
                self._look_for_races(ticket)
        if self.races:
            raise Race("; ".join(self.races))

    def require_readable(self, memory: memoryview) -> None:
        """Raise Race if a pending copy has yet to write into these bytes of host memory."""
        start = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        with self._moving:
            for ticket in self._queue:
                for _, target in ticket.pairs:
                    if target.data_ptr() < start + len(memory) and start < target.data_ptr() + target.nbytes:
                        raise Race("host memory was read before its copy was done")

    def _look_for_races(self, ticket: FakeTicket) -> None:
        for (source, _), version in zip(ticket.pairs, ticket.versions, strict=True):
            if source._version != version and not ticket.held:
                self.races.append(f"a tensor of shape {list(source.shape)} was written during its copy")


class FakeDevices(Devices):
    """Puts tensors on the fake device: all of them, or those that `is_there` picks."""

    def __init__(
        self, device: FakeDevice, is_there: Callable[[torch.Tensor], bool] = lambda tensor: True
    ) -> None:
        super().__init__()
        self._fake = device
        self._is_there = is_there

    def of(self, tensor: torch.Tensor) -> Device | None:
        return self._fake if self._is_there(tensor) else None


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
