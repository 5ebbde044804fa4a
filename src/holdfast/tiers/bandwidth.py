"""A limit on bytes per second that can be interrupted at any time."""

from __future__ import annotations

import threading

from holdfast.clock import Clock, SystemClock
from holdfast.errors import SaveError


class Cancelled(SaveError):
    """The copying was told to end. What is there already is kept for whoever goes on."""


class Bandwidth:
    """A bucket of tokens that holds what one second brings. One byte is one token."""

    def __init__(self, bytes_per_second: int | None, *, clock: Clock | None = None) -> None:
        self._rate = bytes_per_second
        self._clock = clock if clock is not None else SystemClock()
        self._left = float(bytes_per_second or 0)
        self._then = self._clock.monotonic()

    def take(self, count: int, cancel: threading.Event) -> None:
        """Wait until `count` bytes may pass. A piece larger than the bucket passes and is paid for after."""
        if cancel.is_set():
            raise Cancelled("copying was cancelled")
        if self._rate is None:
            return
        while (wait := self._wait_for()) > 0:
            # A second at most: the clock is the judge, not the sleep.
            if cancel.wait(min(wait, 1.0)):
                raise Cancelled("copying was cancelled")
        self._left -= count

    def _wait_for(self) -> float:
        """Seconds until the bucket is out of debt."""
        assert self._rate is not None
        now = self._clock.monotonic()
        self._left = min(self._left + (now - self._then) * self._rate, float(self._rate))
        self._then = now
        return max(-self._left / self._rate, 0.0)
