"""Staging slots that are the memory tier: what is copied into one stays readable when this process dies.

The slot with the newest whole checkpoint is never leased while there is another: whenever the process is
killed, one slot is whole.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Protocol

from holdfast.errors import StoreFull
from holdfast.staging.slots import Lease, Slot

log = logging.getLogger("holdfast")
_SLICE_SECONDS = 0.05


class SlotFiles(Protocol):
    """What this needs of a memory tier."""

    def reopen(self, slot: int) -> None: ...


class SharedSlots:
    """Stands where a SlotPool stands. `make(number)` maps the memory of one of the tier's slots; `newest` is
    the one that an earlier process left whole; `needed` names checkpoints that are being copied elsewhere."""

    def __init__(
        self,
        files: SlotFiles,
        make: Callable[[int], Slot],
        count: int,
        *,
        newest: int | None,
        needed: Callable[[], Collection[str]] = frozenset,
        otherwise: Callable[[], Slot] | None = None,
    ) -> None:
        """`otherwise` makes a slot in this process's own memory, if others have filled the shared one since
        the first was made: the checkpoint then goes where it lasts, and not nowhere."""
        self._files = files
        self._make = make
        self._otherwise = otherwise
        self._count = count
        self._slots: dict[int, Slot] = {}
        self._leased: set[int] = set()
        self._changed = threading.Condition()
        self._newest = newest
        self._needed = needed
        self._names: dict[int, str] = {}

    def lease(self, timeout: float = 0.0) -> Lease | None:
        with self._changed:
            number = self._next()
            end = time.monotonic() + timeout
            while number is None and (left := end - time.monotonic()) > 0:
                # In slices: that a copy elsewhere has ended, nobody tells us.
                self._changed.wait(min(left, _SLICE_SECONDS))
                number = self._next()
            if number is None:
                return None
            self._leased.add(number)
            self._names.pop(number, None)
        try:
            self._files.reopen(number)
            if number not in self._slots:
                self._slots[number] = self._made(number)
            return Lease(self._slots[number], lambda slot: self._give_back(number))
        except BaseException:
            self._give_back(number)
            raise

    def _made(self, number: int) -> Slot:
        try:
            return self._make(number)
        except StoreFull as error:
            if self._otherwise is None:
                raise
            log.warning("holdfast: shared memory has been filled by others: %s", error)
            return self._otherwise()

    def _next(self) -> int | None:
        free = [n for n in range(self._count) if n not in self._leased and n != self._newest]
        needed = self._needed() if free and self._names else ()
        return next((n for n in free if self._names.get(n) not in needed), None)

    def sealed(self, slot: Slot, name: str) -> None:
        """This slot holds the newest whole checkpoint now, so the other may be written."""
        with self._changed:
            self._newest = next((n for n, mine in self._slots.items() if mine is slot), self._newest)
            if self._newest is not None:
                self._names[self._newest] = name
            self._changed.notify()

    def drain(self, timeout: float = 0.0) -> bool:
        with self._changed:
            if not self._changed.wait_for(lambda: not self._leased, timeout):
                return False
            self._slots.clear()
            return True

    @property
    def available(self) -> bool:
        with self._changed:
            return self._next() is not None

    def _give_back(self, number: int) -> None:
        with self._changed:
            self._leased.discard(number)
            self._changed.notify()
