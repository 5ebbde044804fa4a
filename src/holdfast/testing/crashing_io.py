"""The process dies at the n-th I/O call: neither that call nor any later one reaches the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from holdfast.stores.io import StoreIO
from holdfast.testing.forwarding_io import ForwardingIO

T = TypeVar("T")


class SimulatedCrash(BaseException):
    """Not an Exception: no handler in the code under test may survive its own death."""


class CrashingIO(ForwardingIO):
    """Passes the first `survived` calls, then raises SimulatedCrash for ever. Handles of the dead are
    released, as the kernel would; nothing else happens after death."""

    def __init__(self, inner: StoreIO, survived: int) -> None:
        super().__init__(inner)
        self.calls = 0
        self._survived = survived
        self._counting = threading.Lock()

    def _pass(self, verb: str, call: Callable[[], T]) -> T:
        with self._counting:
            self.calls += 1
            is_dead = self.calls > self._survived
        if is_dead:
            if verb in ("close", "unlock"):
                call()
            raise SimulatedCrash(f"died at call {self._survived + 1}")
        return call()
