"""The signals that ask a supervisor to stop: waited for, never handled, and passed on."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


def as_passed_on(number: int | None) -> int:
    """A lost terminal is passed on as a request to stop, which a training can answer with a checkpoint."""
    return number if number in STOP_SIGNALS and number != signal.SIGHUP else signal.SIGTERM


@contextlib.contextmanager
def signals_blocked() -> Iterator[set[signal.Signals]]:
    """Signals are waited for and not handled: no code ever runs at an unexpected moment."""
    # Under nohup a hang-up is ignored, and stays so.
    wanted = {s for s in STOP_SIGNALS if signal.getsignal(s) != signal.SIG_IGN} | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    # Another thread (one that asks for notices, one of a library) does not block them. Without a handler what
    # it catches would end the process; with one, it is handed to the thread that waits.
    me = threading.get_ident()
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {
        number: signal.signal(number, lambda caught, frame: signal.pthread_kill(me, caught))
        for number in (wanted - {signal.SIGCHLD} if is_main else ())
    }
    try:
        yield wanted
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        # A stop signal that came too late to be passed on must not kill what comes after.
        while signal.sigtimedwait(wanted, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
