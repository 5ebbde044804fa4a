"""Loader workers outlive signals that were meant for their training.

A scheduler signals every process of a job. A worker that dies of it takes the training down before that can
finish its step and save: torch raises in the main process when a worker is killed.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

# A worker that was told to end and is not ended by its training goes by itself. Long enough for a last step;
# a parent that shuts a stuck worker down by SIGTERM waits for this long.
PATIENCE_SECONDS = 60.0


def outlive_signals_of_the_job() -> None:
    """In a worker's main thread, before the user's own `worker_init_fn`, whose handlers win."""
    signal.signal(signal.SIGTERM, _leave_later)
    signal.signal(signal.SIGINT, _not_for_me)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _not_for_me)


def _leave_later(number: int, frame: FrameType | None) -> None:
    if not any(isinstance(thread, _Leaving) for thread in threading.enumerate()):
        _Leaving(PATIENCE_SECONDS).start()


def _not_for_me(number: int, frame: FrameType | None) -> None:
    """A function and not SIG_IGN: programs that a dataset starts would inherit that."""


class _Leaving(threading.Timer):
    def __init__(self, seconds: float) -> None:
        # With code 0: torch takes any other end for a failure and raises in the middle of a last save.
        super().__init__(seconds, os._exit, (0,))
        self.daemon = True
