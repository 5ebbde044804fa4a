"""A worker thread whose failures come back to whoever asked. It runs one job at a time, in order."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable

log = logging.getLogger("holdfast")


class Worker:
    """Daemonic: a training script that dies must not hang on its saver; `close` is how work is waited for."""

    def __init__(
        self,
        name: str,
        idle: Callable[[], None] | None = None,
        idle_seconds: float = 5.0,
        *,
        polite: bool = False,
    ) -> None:
        self._name = name
        self._polite = polite
        self._idle = idle
        self._idle_seconds = idle_seconds
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """`job` must handle its own errors: it has a handle to report them through."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                # The system gives no more threads. Here and now is better than never, and than a fence that
                # waits for a copy which nobody makes.
                self._thread = None
                job()
                return
        self._jobs.put(job)

    def _run(self) -> None:
        if self._polite:
            give_way()
        while True:
            try:
                job = self._jobs.get(timeout=self._idle_seconds)
            except queue.Empty:
                if self._idle is not None:
                    self._idle()
                continue
            if job is None:
                return
            try:
                job()
            except Exception:
                # A job reports through its handle; what escapes is our bug, and must not end the worker:
                # whoever waits for the next job would wait for ever.
                log.exception("holdfast: a background job failed unexpectedly")

    def close(self, timeout: float) -> bool:
        """Finish what was submitted. False if it did not end within `timeout`."""
        thread = self._thread
        if thread is None:
            return True
        self._jobs.put(None)
        thread.join(timeout)
        return not thread.is_alive()


def give_way() -> None:
    """Let training have the cores first: digesting and writing can wait, the next step cannot.

    On Linux a priority belongs to a thread, and threads started from here inherit it.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
