"""SIGTERM and Ctrl-C end the loop at the next step boundary. The handler sets a flag and nothing else."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Installed while a run is open, in the main thread; elsewhere it does nothing."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._previous: dict[int, Any] = {}
        self._owner = os.getpid()

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)

    def remove(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, previous if previous is not None else signal.SIG_DFL)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            # A forked data loader worker inherits handlers; the run is not its to stop.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self.reason is not None and number == signal.SIGINT:
            # Asked twice: the user does not want to wait.
            signal.default_int_handler(number, frame)
        self.reason = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
