"""Runs a command until its work is done: starts it, watches it, passes signals on, starts it again.

It decides nothing about checkpoints and reads none: what progress is, it is told. One thread, which sleeps in
one place, waiting for signals; a child's end is one of them.
"""

from __future__ import annotations

import errno
import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from holdfast.clock import Clock, SystemClock
from holdfast.events import AttemptEnded, AttemptStarted, Event, SupervisorEnded, Warned
from holdfast.jobs import deadline as deadlines
from holdfast.jobs import exit_codes, heartbeat, plain, torchrun
from holdfast.jobs.attempts import (
    AttemptEnd,
    Evidence,
    Move,
    RestartRules,
    Tally,
    classify,
    got_on,
    next_move,
    signal_of,
)
from holdfast.jobs.environment import WallDeadline
from holdfast.jobs.halt import read_halt
from holdfast.jobs.heartbeat import Beat, read_beat
from holdfast.jobs.limit_warning import WARNINGS, announces_the_limit, warning_seconds
from holdfast.jobs.permanent_errors import permanent_error
from holdfast.jobs.standard_input import StandardInput
from holdfast.jobs.supervisor_child import STOP_SIGNALS, Child, as_passed_on, signals_blocked
from holdfast.jobs.supervisor_memory import oom_kills
from holdfast.jobs.watchdog import HangLimits, Watchdog

# ---- What a supervisor is told, and what it shows.


@dataclass(frozen=True)
class SupervisorSettings:
    rules: RestartRules = field(default_factory=RestartRules)
    hang: HangLimits = field(default_factory=HangLimits)
    # After a stop was asked for: the command may still have to finish a step and a save.
    grace: float = 600.0
    deadline: WallDeadline | None = None
    # The folder of the run, if the user names it; otherwise the training says it in its heartbeat.
    run: str | None = None


@dataclass(frozen=True)
class Status:
    """What the live view shows."""

    attempt: int
    seconds: float
    restarts: int
    beat: Beat | None
    pausing: float | None = None


__all__ = ["Status", "Supervisor", "SupervisorSettings"]

LOOK_SECONDS = 1.0
# From a first, polite signal to a hung command until it is killed, and then until it must be gone.
HANG_GRACE = 10.0
STACKS_GRACE = 2.0
GONE_SECONDS = 30.0
# How long before a time limit a command that does not know of it is asked to stop.
LEAD_SHARE = 0.1
LONGEST_LEAD = 60.0


def _no_checkpoint(run: str) -> str | None:
    return None


class Supervisor:
    """`report` hears every event, with the run's folder once it is known. `newest_checkpoint` looks into it.

    `leaving` answers why this machine will be taken away, or None.
    """

    def __init__(
        self,
        command: Sequence[str],
        settings: SupervisorSettings,
        *,
        report: Callable[[Event, str | None], None],
        newest_checkpoint: Callable[[str], str | None] = _no_checkpoint,
        leaving: Callable[[], str | None] = lambda: None,
        show: Callable[[Status], None] = lambda status: None,
        open_output: Callable[[int], IO[bytes] | None] = lambda attempt: None,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._command = list(command)
        self._settings = settings
        self._report = report
        self._newest_checkpoint = newest_checkpoint
        self._leaving = leaving
        self._show = show
        self._open_output = open_output
        self._environ = dict(os.environ if environ is None else environ)
        self._clock = clock or SystemClock()
        self._watchdog = Watchdog(settings.hang)
        self._tally = Tally()
        self._asked: str | None = None
        self._folder = settings.run
        self._beat: Beat | None = None
        self._newest_before: str | None = None
        # Another folder than the one that was named, as the training says.
        self._other_run: str | None = None
        self._ask_at = 0.0
        self._warned: str | None = None

    def run(self) -> int:
        """Until there is nothing more to do. Returns the exit code, documented in `exit_codes`."""
        with (
            signals_blocked() as waiting,
            tempfile.TemporaryDirectory(prefix="holdfast-run-", dir=_memory_folder()) as folder,
        ):
            self._waiting = waiting
            self._input = StandardInput()
            self._plan_the_end()
            while True:
                move = self._attempt(Path(folder))
                if move.exit_code is None and move.pause:
                    move = self._pause(move)
                if move.exit_code is not None:
                    self._tell(
                        SupervisorEnded(
                            time=self._clock.wall(), attempts=self._tally.attempts,
                            exit_code=move.exit_code, why=move.why,
                        )
                    )  # fmt: skip
                    return move.exit_code

    # ---- one attempt

    def _attempt(self, folder: Path) -> Move:
        attempt = self._tally.attempts
        # A new file each time: an orphan of an earlier attempt must not answer for this one.
        beats = folder / f"heartbeat-{attempt}"
        beats.touch(mode=0o600)
        environ = {**self._environ, heartbeat.VARIABLE: str(beats), plain.ATTEMPT: str(attempt)}
        environ.setdefault(torchrun.OWN_STORE, "1")  # or its --max-restarts may hang
        if self._settings.deadline is not None:
            environ[deadlines.VARIABLE] = f"@{self._settings.deadline.at}"
        self._newest_before = self._checkpoint()
        memory_before = oom_kills()
        started = self._clock.monotonic()
        self._beat = None
        if attempt and (reason := self._input.cannot_repeat):
            return Move(f"cannot start again: {reason}", exit_code=exit_codes.DO_NOT_RESTART)
        output, stdin = self._open_output(attempt), self._input.for_attempt()
        try:
            child = Child(self._command, environ, output, stdin=stdin, ignored=WARNINGS)
        except OSError as error:
            return self._cannot_start(error)
        finally:
            if output is not None:
                output.close()
            if stdin is not None:
                os.close(stdin)
        self._tell(AttemptStarted(time=self._clock.wall(), attempt=attempt, pid=child.pid))
        try:
            returncode, hang = self._watch(child, beats, started)
        finally:
            # Also if the supervisor itself fails: training must not go on unwatched beside its successor.
            if child.returncode() is None:
                self._kill(child)
        here, anywhere = oom_kills().since(memory_before)
        end = classify(
            Evidence(
                returncode=returncode, last_beat=self._beat, hang=hang,
                asked_to_stop=self._asked or self._warned, run=self._folder, halted=self._halted(),
                other_run=self._other_run,
                permanent=self._permanent(returncode, self._clock.monotonic() - started),
                oom_kills_here=here, oom_kills_anywhere=anywhere,
            )
        )  # fmt: skip
        if end.cause != "finished":
            self._clear_away(child)
        return self._judge(end, self._clock.monotonic() - started)

    def _watch(self, child: Child, beats: Path, started: float) -> tuple[int, str | None]:
        self._watchdog.attempt_started(started)
        kill_at: float | None = None
        while True:
            number = self._wait(LOOK_SECONDS)
            returncode = child.returncode()
            self._read(beats)
            if returncode is not None:
                return returncode, None
            if self._other_run is not None:
                child.signal(signal.SIGTERM)
                self._gone(child, HANG_GRACE)
                return self._kill(child), None
            now = self._clock.monotonic()
            why = self._why_stop(number)
            if why is not None:
                child.signal(_as_wanted(child, as_passed_on(number)))
                if self._is_known(number):
                    # It knows its end, and stops when it is time. If it stops at once, it was asked to.
                    self._warned = why
                elif self._asked is None:
                    self._asked = why
                    kill_at = now + self._settings.grace
            hang = self._watchdog.look(now, self._beat)
            if hang is not None:
                return self._end_hung(child), hang
            if kill_at is not None and now >= kill_at:
                self._warn(f"the command did not stop within {self._settings.grace:.0f} s and is killed")
                return self._kill(child), None
            self._show(Status(self._tally.attempts, now - started, self._tally.failures, self._beat))
            child.reap_orphans()

    def _why_stop(self, number: int | None) -> str | None:
        """A signal is passed on every time, a notice and the time limit once."""
        # One that is still loading dies of nothing: it is asked when the moment of the warning has come.
        put_off = self._beat is None and self._announces_the_limit(number)
        if number is not None and number in STOP_SIGNALS and not put_off:
            return signal.Signals(number).name
        if self._asked is not None:
            return None
        leaving = self._leaving()
        if leaving is not None:
            self._warn(leaving)
            return "preemption"
        deadline = self._settings.deadline
        if deadline is None:
            return None
        # A command that gives signs of life knows its end itself, and better.
        ask_at = self._ask_at if self._beat is None else deadline.at
        return "time limit" if self._clock.wall() >= ask_at else None

    def _is_known(self, number: int | None) -> bool:
        return self._beat is not None and self._announces_the_limit(number)

    def _announces_the_limit(self, number: int | None) -> bool:
        deadline = self._settings.deadline
        left = None if deadline is None else deadline.at - self._clock.wall()
        return announces_the_limit(number, left, self._environ)

    def _plan_the_end(self) -> None:
        deadline, now = self._settings.deadline, self._clock.wall()
        if deadline is not None:
            lead = min(LONGEST_LEAD, max(deadline.at - now, 0.0) * LEAD_SHARE)
            # Who chose a warning of his own has a reason for it.
            self._ask_at = deadline.at - max(lead, warning_seconds(self._environ))

    def _judge(self, end: AttemptEnd, seconds: float) -> Move:
        after = self._checkpoint()
        visible = self._folder is not None
        progressed = got_on(self._newest_before, after, visible=visible, seconds=seconds)
        attempt, self._tally = self._tally.attempts, self._tally.after(end, progressed=progressed)
        deadline = self._settings.deadline
        left = None if deadline is None else deadline.at - self._clock.wall()
        move = next_move(
            end,
            self._tally,
            self._settings.rules,
            seconds_left=left,
            stopping=bool(self._asked or self._warned),
        )
        self._tell(
            AttemptEnded(
                time=self._clock.wall(), attempt=attempt, cause=end.cause, detail=end.detail,
                planned=end.planned, seconds=seconds, checkpoint=after,
                will_restart=move.exit_code is None, then=move.why,
                exit_code=end.returncode if end.returncode >= 0 else None, signal=signal_of(end.returncode),
            )
        )  # fmt: skip
        return move

    def _cannot_start(self, error: OSError) -> Move:
        missing = error.errno == errno.ENOENT
        code = exit_codes.NOT_FOUND if missing else exit_codes.CANNOT_EXECUTE
        return Move(f"cannot start {self._command[0]!r}: {error.strerror}", exit_code=code)

    def _pause(self, move: Move) -> Move:
        """Wait before a restart; a stop that comes meanwhile ends the supervisor."""
        end = self._clock.monotonic() + move.pause
        while (left := end - self._clock.monotonic()) > 0:
            number = self._wait(min(left, LOOK_SECONDS))
            why = self._why_stop(number)
            if why is not None:
                code = exit_codes.INTERRUPTED if why == "SIGINT" else exit_codes.PLEASE_RUN_AGAIN
                return Move(f"{why} before the next start; run the same command to continue", exit_code=code)
            self._show(Status(self._tally.attempts, 0.0, self._tally.failures, self._beat, left))
        return move

    # ---- ending processes

    def _end_hung(self, child: Child) -> int:
        """First as for a stop, for a judgement that was wrong; then its stacks, then the end."""
        child.signal(signal.SIGTERM)
        if not self._gone(child, HANG_GRACE):
            # A training under holdfast answers this with the stacks of all its threads; others end by it.
            child.signal(signal.SIGQUIT)
            self._gone(child, STACKS_GRACE)
        return self._kill(child)

    def _kill(self, child: Child) -> int:
        child.kill()
        self._gone(child, GONE_SECONDS)
        returncode = child.returncode()
        # Unkillable: it waits inside the kernel for a dead file system. Nothing more can be done from here.
        return -int(signal.SIGKILL) if returncode is None else returncode

    def _clear_away(self, child: Child) -> None:
        """What the command left running. A shell that was stopped may leave a training that still saves."""
        if self._asked is not None and child.left_behind():
            child.signal_left_behind(signal.SIGTERM)
            self._until(lambda: not child.left_behind(), self._settings.grace)
        if child.left_behind():
            child.signal_left_behind(signal.SIGKILL)
            if not self._until(lambda: not child.left_behind(), GONE_SECONDS):
                self._warn(f"processes that do not die: {child.left_behind()}")
        child.reap_orphans()

    def _gone(self, child: Child, seconds: float) -> bool:
        return self._until(lambda: child.returncode() is not None, seconds)

    def _until(self, done: Callable[[], bool], seconds: float) -> bool:
        end = self._clock.monotonic() + seconds
        while not done():
            left = end - self._clock.monotonic()
            if left <= 0:
                return False
            # The end of a process that is not our child sends no signal, so look now and then.
            number = self._wait(min(left, 0.1))
            if number in STOP_SIGNALS and self._asked is None:
                self._asked = signal.Signals(number).name
        return True

    # ---- small things

    def _wait(self, seconds: float) -> int | None:
        """The one place where the supervisor sleeps: until a signal, or until the time is over."""
        got = signal.sigtimedwait(self._waiting, seconds)
        return None if got is None else got.si_signo

    def _read(self, beats: Path) -> None:
        beat = read_beat(str(beats))
        if beat is None:
            return
        first, self._beat = self._beat is None, beat
        if self._folder is None:
            self._folder = beat.run
            self._newest_before = beat.resumed_from
        named = self._settings.run
        if first and named is not None and os.path.realpath(named) != os.path.realpath(beat.run):
            self._other_run = beat.run

    def _permanent(self, returncode: int, seconds: float) -> str | None:
        if self._beat is not None or self._asked is not None:
            return None
        return permanent_error(self._command, returncode, seconds, self._environ)

    def _checkpoint(self) -> str | None:
        return None if self._folder is None else self._newest_checkpoint(self._folder)

    def _halted(self) -> str | None:
        """A training that finds the note when it starts gives no sign of life."""
        try:
            note = None if self._folder is None else read_halt(self._folder)
        except OSError:
            return None
        return None if note is None else str(note)

    def _tell(self, event: Event) -> None:
        self._report(event, self._folder)

    def _warn(self, message: str) -> None:
        self._tell(Warned(time=self._clock.wall(), message=message))


def _as_wanted(child: Child, number: int) -> int:
    """A warning that the command does not listen to would end it, or nothing."""
    return number if number not in WARNINGS or child.catches(number) else signal.SIGTERM


def _memory_folder() -> str | None:
    """Heartbeats in memory: a hung disk must not look like a hung training."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None
