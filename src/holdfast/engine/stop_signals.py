"""Signals end the loop at the next step boundary. The handler sets a flag and nothing else.

Whoever presses Ctrl-C must see that it was heard, also while the training thread is deep inside C: Python's
own C handler writes the signal's number into a pipe, and a thread that reads it speaks.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import threading
from types import FrameType
from typing import Any

from holdfast.clock import SystemClock
from holdfast.jobs.heartbeat import VARIABLE

log = logging.getLogger("holdfast")
CTRL_C = "Ctrl-C"
# Schedulers warn with SIGTERM, or with what the user chose in --signal, mostly SIGUSR1 or SIGUSR2.
_ALWAYS = (signal.SIGTERM, signal.SIGINT)
_IF_UNUSED = (signal.SIGUSR1, signal.SIGUSR2)
# A terminal and a supervisor may both pass on one Ctrl-C; a second one is meant only after a moment.
ANOTHER_CTRL_C_SECONDS = 1.0


class StopSignals:
    """Installed while a run is open. Python lets only the main thread do that; elsewhere it says so."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.number = 0
        # When a scheduler's warning came, by the monotonic clock; None if it was another signal.
        self.warned_at: float | None = None
        self._interrupted_at: float | None = None
        self._previous: dict[int, Any] = {}
        self._owner = os.getpid()
        self._voice = _Voice()

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            log.warning(
                "holdfast: this run was opened in thread %r, where Python hears no signals: SIGTERM and "
                "Ctrl-C will not save it. Enter the with block in the main thread, or use `holdfast halt`",
                threading.current_thread().name,
            )
            return
        # A script that handles SIGUSR1 or SIGUSR2 itself keeps them.
        # A supervisor has its command ignore them until here, because loading must not die of a warning.
        free = {signal.SIG_DFL, *([signal.SIG_IGN] if VARIABLE in os.environ else [])}
        unused = [s for s in _IF_UNUSED if signal.getsignal(s) in free]
        for number in (*_ALWAYS, *unused):
            self._previous[number] = signal.signal(number, self._handle)
        self._voice.open()

    def remove(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, previous if previous is not None else signal.SIG_DFL)
        self._previous.clear()
        self._voice.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            self._in_a_forked_child(number)
            return
        if number == signal.SIGINT and self._insists():
            signal.default_int_handler(number, frame)
        first = self.reason is None
        if first and number in _IF_UNUSED:
            self.warned_at = SystemClock().monotonic()
        elif self.warned_at is not None and number not in _IF_UNUSED:
            # Meant in earnest: it comes on top of a warning that may have been put off.
            self.warned_at = None
            first = True
        if first:
            self.number = number
            self.reason = CTRL_C if number == signal.SIGINT else signal.Signals(number).name

    def _insists(self) -> bool:
        """Whether Ctrl-C was asked for before, and not just now: the user does not want to wait."""
        now = SystemClock().monotonic()
        if self._interrupted_at is None:
            self._interrupted_at = now
        return now - self._interrupted_at >= ANOTHER_CTRL_C_SECONDS

    def _in_a_forked_child(self, number: int) -> None:
        """A data loader's worker inherits the handlers; the run is not its to stop.

        What is sent to a whole group (Ctrl-C, a scheduler's warning) must not kill a worker whose batch the
        last step still needs; its parent ends it. SIGTERM is also how a parent does that.
        """
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


class _Voice:
    """Says on the terminal that Ctrl-C was heard, the moment it is pressed."""

    def __init__(self) -> None:
        self._ends: tuple[int, int] | None = None
        self._before = -1

    def open(self) -> None:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        self._before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if self._before != -1:
            # An event loop listens there, and cannot do without.
            signal.set_wakeup_fd(self._before)
            os.close(reading)
            os.close(writing)
            return
        self._ends = (reading, writing)
        listen = threading.Thread(target=self._listen, args=(reading,), name="holdfast-signals", daemon=True)
        try:
            listen.start()
        except RuntimeError:
            # The system gives no more threads. Signals are heard all the same, only not answered at once.
            self.close()
            os.close(reading)

    def close(self) -> None:
        if self._ends is not None:
            writing, self._ends = self._ends[1], None
            signal.set_wakeup_fd(-1)
            os.close(writing)

    def _listen(self, reading: int) -> None:
        said = False
        with open(reading, "rb", buffering=0) as pipe:
            while numbers := pipe.read(16):
                if signal.SIGINT in numbers and not said:
                    said = True
                    log.warning(
                        "holdfast: Ctrl-C: saving at the next step boundary, then stopping; press it again "
                        "to stop at once, without saving"
                    )


def show_stacks_on_request() -> None:
    """SIGQUIT prints the stacks of all threads, even of a main thread that hangs inside C. For a watchdog."""
    with contextlib.suppress(ValueError, OSError, RuntimeError, AttributeError):
        faulthandler.register(signal.SIGQUIT, all_threads=True, chain=False)
