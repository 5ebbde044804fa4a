"""What wakes a keeper's main thread: signals, and work that other threads have finished.

The handlers do nothing; the interpreter itself writes a signal's number into a socket that is waited for.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from types import FrameType
from typing import Any, Self

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
_WORK_DONE = b"\0"


class Wake:
    """Only in the main thread."""

    def __enter__(self) -> Self:
        self._ear, self._mouth = socket.socketpair()
        for end in (self._ear, self._mouth):
            end.setblocking(False)
        # Under nohup a hang-up is ignored, and stays so.
        wanted = [s for s in STOP_SIGNALS if signal.getsignal(s) != signal.SIG_IGN]
        self._before: dict[int, Any] = {
            number: signal.signal(number, _nothing) for number in (*wanted, signal.SIGCHLD)
        }
        self._fd_before = signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._ear.close()
        self._mouth.close()

    def fileno(self) -> int:
        return self._ear.fileno()

    def work_done(self) -> None:
        """From any thread."""
        with contextlib.suppress(OSError):
            self._mouth.send(_WORK_DONE)

    def stop_signals(self) -> list[int]:
        """Those that came since the last call."""
        try:
            return [number for number in self._ear.recv(4096) if number in STOP_SIGNALS]
        except BlockingIOError:
            return []


def _nothing(number: int, frame: FrameType | None) -> None: ...
