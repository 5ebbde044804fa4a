"""Make the n-th I/O call fail: loop n from 1 until a run passes untouched, and every failure was tried."""

from __future__ import annotations

import errno as errnos
import os
import threading
from collections.abc import Callable
from typing import Literal, TypeVar

from holdfast.stores.io import StoreIO
from holdfast.testing.forwarding_io import ForwardingIO

T = TypeVar("T")
# A descriptor or lock that the double refused to give back would outlive the test.
_GIVES_HANDLE = frozenset({"open_root", "open_directory", "create", "open_read"})
_ALWAYS_DONE = frozenset({"close", "unlock"})


class FailingIO(ForwardingIO):
    """Fails call number `nth` with an errno (and, if `persistent`, every later one).

    `after=True` performs the call and then reports failure, as a network file system does when the reply
    is lost. `error="short"` makes a write take only half; other calls then pass. `fired` counts failures.
    While `armed` is False calls pass uncounted, so a test can aim at one action of many.
    """

    def __init__(
        self,
        inner: StoreIO,
        nth: int,
        error: int | Literal["short"] = errnos.EIO,
        *,
        persistent: bool = False,
        after: bool = False,
    ) -> None:
        super().__init__(inner)
        self.calls = 0
        self.fired = 0
        self.armed = True
        self._nth = nth
        self._error = error
        self._persistent = persistent
        self._after = after
        self._counting = threading.Lock()

    def _is_due(self) -> bool:
        with self._counting:
            if not self.armed:
                return False
            self.calls += 1
            due = self.calls == self._nth or (self._persistent and self.calls > self._nth)
            self.fired += due
            return due

    def _pass(self, verb: str, call: Callable[[], T]) -> T:
        if not self._is_due() or self._error == "short":
            return call()
        if self._after or verb in _ALWAYS_DONE:
            self._forget(verb, call())
        raise OSError(self._error, os.strerror(self._error))

    def _forget(self, verb: str, result: object) -> None:
        """Whoever never heard of a handle cannot close it."""
        if isinstance(result, int) and verb in _GIVES_HANDLE:
            self.inner.close(result)
        elif isinstance(result, int) and verb == "lock":
            self.inner.unlock(result)

    def write_at(self, file: int, data: memoryview, offset: int) -> int:
        if self._error != "short":
            return super().write_at(file, data, offset)
        part = data[: max(1, len(data) // 2)] if self._is_due() else data
        return self.inner.write_at(file, part, offset)
