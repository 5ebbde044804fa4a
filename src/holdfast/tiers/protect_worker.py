"""Protecting behind training: one thread, at low priority, always at the newest checkpoint."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable

from holdfast.errors import HoldfastError
from holdfast.tiers.bandwidth import Cancelled
from holdfast.tiers.protect import Protected

log = logging.getLogger("holdfast")
Protect = Callable[[str, threading.Event], Protected]
Tell = Callable[[str, Protected | HoldfastError], None]


class Protector:
    """`protect(name, cancel)` does the work; `tell(name, outcome)` hears of each that ended.

    A newer checkpoint calls off the one that is being protected: half a protection of an old one is worth
    less than a whole one of the new. What was called off is not told.
    """

    def __init__(self, protect: Protect, tell: Tell) -> None:
        self._protect = protect
        self._tell = tell
        self._changed = threading.Condition()
        self._next: str | None = None
        self._cancel = threading.Event()
        self._is_busy = False
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def submit(self, name: str) -> None:
        """A checkpoint that is committed on all nodes. Returns at once."""
        with self._changed:
            self._next = name
            self._cancel.set()
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-protect", daemon=True)
                self._thread.start()

    def wait(self, limit: float) -> bool:
        """Until the newest one submitted is done with; False if that takes longer than `limit`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._next is None and not self._is_busy, limit)

    def close(self, limit: float) -> bool:
        """End now: whatever is under way is called off. False if the thread did not end in time."""
        with self._changed:
            self._is_closing = True
            self._cancel.set()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(limit)
        return self._thread is None or not self._thread.is_alive()

    def _run(self) -> None:
        # On Linux a priority belongs to a thread, and threads started from here inherit it.
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                while self._next is None and not self._is_closing:
                    # Without a limit on purpose: it ends with `close`, and a daemon ends with its process.
                    self._changed.wait()
                if self._is_closing:
                    return
                assert self._next is not None
                name, self._next, self._is_busy = self._next, None, True
                cancel = self._cancel = threading.Event()
            self._one(name, cancel)

    def _one(self, name: str, cancel: threading.Event) -> None:
        outcome: Protected | HoldfastError
        try:
            outcome = self._protect(name, cancel)
        except Cancelled:
            return
        except HoldfastError as error:
            outcome = error
        except Exception as error:
            log.exception("holdfast: protecting %s failed unexpectedly", name)
            outcome = HoldfastError(f"protecting {name} failed unexpectedly: {error!r}")
        try:
            self._tell(name, outcome)
        except Exception:
            log.exception("holdfast: nobody could hear how protecting %s ended", name)
