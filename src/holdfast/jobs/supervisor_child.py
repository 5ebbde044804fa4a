"""The supervised command and everything it has started: starting it, signalling it, making sure it is gone.

A process that outlives its attempt would go on training beside the next one, so nothing may escape: the
supervisor adopts orphans, also those that have left the command's session (as the workers of torchrun do).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Child:
    """`output` takes both streams of the command, `stdin` feeds it; without them it has the supervisor's own.
    `death_signal` is what it gets should the supervisor be killed. `ignored` are signals that must not end it
    unless it handles them itself: some schedulers send theirs to every process of a job. `umask` is its own
    one, if not ours."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        output: IO[bytes] | None = None,
        # SIGTERM and not SIGKILL: nobody would restart it now, so it should stop with a checkpoint.
        death_signal: signal.Signals = signal.SIGTERM,
        stdin: int | None = None,
        ignored: Collection[signal.Signals] = (),
        umask: int = -1,
    ) -> None:
        adopt_orphans()
        me = os.getpid()
        self._not_ours = {one.pid for one in _processes() if one.parent == me}
        self._process = subprocess.Popen(
            list(command),
            env=dict(environ),
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT if output is not None else None,
            # A session of its own: Ctrl-C reaches it through the supervisor, once, and not from the terminal.
            start_new_session=True,
            umask=umask,
            preexec_fn=lambda: _prepare(death_signal, me, ignored),
        )
        self.pid = self._process.pid

    def returncode(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        """To the command itself; a launcher passes it on as it sees fit."""
        self._process.send_signal(number)

    def catches(self, number: int) -> bool:
        """Whether the command has a handler for a signal now. Where that cannot be told, it has."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
            caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
        except (OSError, StopIteration, IndexError):
            return True
        return bool(int(caught, 16) >> (number - 1) & 1)

    def left_behind(self) -> list[int]:
        """Living processes of its session, and orphans of it that the supervisor has adopted."""
        me = os.getpid()
        return [
            one.pid
            for one in _processes()
            if one.pid not in (self.pid, me)
            and not one.is_dead
            and (one.session == self.pid or (one.parent == me and one.pid not in self._not_ours))
        ]

    def signal_left_behind(self, number: int) -> None:
        for pid in self.left_behind():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Everything at once, the command first."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.signal_left_behind(signal.SIGKILL)

    def reap_orphans(self) -> None:
        """Dead adopted processes would stay in the process table for ever. Asks the kernel and not /proc,
        which on a large node takes longer to read than the second between two looks."""
        with contextlib.suppress(ChildProcessError):
            while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if dead.si_pid in {self.pid, *self._not_ours}:
                    # Whoever started it wants to know how it ended, and until then the kernel names no other.
                    return self._reap_beside(dead.si_pid)
                os.waitpid(dead.si_pid, os.WNOHANG)

    def _reap_beside(self, dead: int) -> None:
        for task in Path("/proc/self/task").iterdir():
            # A thread may have ended meanwhile, and a kernel may not list children.
            with contextlib.suppress(OSError):
                for child in map(int, (task / "children").read_text().split()):
                    if child not in {dead, self.pid, *self._not_ours}:
                        with contextlib.suppress(ChildProcessError):
                            os.waitpid(child, os.WNOHANG)


def adopt_orphans() -> None:
    if _prctl is not None:
        _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _prepare(death_signal: signal.Signals, parent: int, ignored: Collection[signal.Signals] = ()) -> None:
    """In the child, before its command: a clean signal mask, and a signal should the supervisor be killed."""
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:  # it was killed before we could ask to be told
            os.kill(os.getpid(), death_signal)


def _find_prctl() -> Any:
    # Looked up before any fork: loading a library in between is not safe.
    try:
        return ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return None


_prctl = _find_prctl()


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    session: int
    is_dead: bool


def _processes() -> list[_Process]:
    found = []
    for entry in Path("/proc").iterdir() if os.path.isdir("/proc/self") else ():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name in parentheses may hold anything; what follows the last one is numbers.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                state, parent, _, session = fields[0], int(fields[1]), fields[2], int(fields[3])
                found.append(_Process(int(entry.name), parent, session, state in "ZX"))
    return found


# ---- The signals that ask a supervisor to stop: waited for, never handled, and passed on.

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
