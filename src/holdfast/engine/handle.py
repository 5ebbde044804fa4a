"""What `save_now` gives back: a save on its way to being durable."""

from __future__ import annotations

import threading
from typing import Literal

from holdfast.errors import HoldfastError, SaveError

Outcome = Literal["pending", "committed", "failed"]


class SaveHandle:
    """One save. `wait()` returns the checkpoint's name once it is durable, or raises why it is not."""

    def __init__(self, step: int, reason: str, wait_limit: float) -> None:
        self.step = step
        self.reason = reason
        self.name: str | None = None
        self.error: HoldfastError | None = None
        self.stall_seconds = 0.0
        self.persist_seconds = 0.0
        self.bytes = 0
        self._done = threading.Event()
        self._wait_limit = wait_limit

    @property
    def done(self) -> bool:
        return self._done.is_set()

    @property
    def outcome(self) -> Outcome:
        if not self.done:
            return "pending"
        return "failed" if self.error else "committed"

    def ended_within(self, timeout: float) -> bool:
        """Whether the save has ended, one way or the other."""
        return self._done.wait(timeout)

    def wait(self, timeout: float | None = None) -> str:
        limit = self._wait_limit if timeout is None else timeout
        if not self._done.wait(limit):
            raise SaveError(
                f"the save of step {self.step} is not durable after {limit:.0f} s",
                hint="it goes on in the background; the disk may be very slow or gone",
            )
        if self.error is not None:
            raise self.error
        assert self.name is not None
        return self.name

    def committed(self, name: str) -> None:
        self.name = name
        self._done.set()

    def failed(self, error: HoldfastError) -> None:
        self.error = error
        self._done.set()

    def __repr__(self) -> str:
        return f"<save of step {self.step}: {self.outcome}>"
