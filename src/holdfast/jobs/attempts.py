"""Why an attempt ended, and what follows: again, later, or never. Pure: no clock, no processes.

An end that somebody asked for is no failure. A crash is restarted while restarts still bring new checkpoints;
restarting what cannot get on would only hide the cause and burn the allocation.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal

from holdfast.jobs import exit_codes
from holdfast.jobs.halt import SAYS_HALTED
from holdfast.jobs.heartbeat import Beat
from holdfast.units import format_seconds

Cause = Literal[
    "finished", "stopped", "interrupted", "preemption", "time limit", "halted",
    "exit code", "signal", "out of memory", "hang", "node lost", "do not restart", "cannot start",
]  # fmt: skip
# What the training says in its last heartbeat when it stopped by itself.
SAYS_DEADLINE = "deadline"
SAYS_NOTICE = "notice"

_PLANNED: frozenset[Cause] = frozenset(
    {"finished", "stopped", "interrupted", "preemption", "time limit", "halted"}
)
_SHELL_SIGNAL_BASE = 128
# An attempt of a program whose checkpoints nobody can see got on if it lived this long.
LIVED_LONG_ENOUGH = 60.0


@dataclass(frozen=True)
class Evidence:
    """Everything the supervisor knows about an end. `returncode` is negative for a signal."""

    returncode: int
    last_beat: Beat | None = None
    hang: str | None = None
    # Why the supervisor itself asked the command to stop: a signal's name, "preemption" or "time limit".
    asked_to_stop: str | None = None
    # The run's folder, and what the note in it says that halts it.
    run: str | None = None
    halted: str | None = None
    # The folder that the training uses, if the supervisor was told another one.
    other_run: str | None = None
    # What is wrong with the command itself, so that it would only fail again.
    permanent: str | None = None
    # Kills for lack of memory during this attempt: in the job's own memory group, and on the machine.
    oom_kills_here: int = 0
    oom_kills_anywhere: int = 0


@dataclass(frozen=True)
class AttemptEnd:
    cause: Cause
    detail: str
    returncode: int = 0

    @property
    def planned(self) -> bool:
        return self.cause in _PLANNED


def signal_of(returncode: int) -> int | None:
    """The signal that ended a process, its own or that of a command inside a shell."""
    number = -returncode if returncode < 0 else returncode - _SHELL_SIGNAL_BASE
    return number if 0 < number < signal.NSIG else None


def classify(seen: Evidence) -> AttemptEnd:
    """From everything that is known to the one cause that explains it best."""
    cause, detail = _cause(seen)
    return AttemptEnd(cause, detail, seen.returncode)


def _cause(seen: Evidence) -> tuple[Cause, str]:
    code, asked = seen.returncode, seen.asked_to_stop
    said = seen.last_beat.why if seen.last_beat is not None else ""
    finished = seen.last_beat is not None and seen.last_beat.phase == "finished"
    if seen.hang is not None:
        return "hang", seen.hang
    # A program that answers SIGTERM with 0 has ended, but nobody knows that its work is complete.
    if code == exit_codes.FINISHED and (asked is None or finished):
        return _ended_well(seen.last_beat)
    if seen.other_run is not None:
        return "do not restart", (
            f"the training uses {seen.other_run} and not {seen.run}, which was named: nobody would see its "
            "checkpoints; give the same folder in both places"
        )
    if code == exit_codes.DO_NOT_RESTART and (seen.halted or said.startswith(SAYS_HALTED)):
        clear = f"holdfast halt --clear {seen.run or 'RUN'}"
        return "halted", f"{seen.halted or said}; `{clear}` lets it run again"
    if code == exit_codes.DO_NOT_RESTART:
        return "do not restart", f"exit code {code}: running again cannot help; its own output says why"
    if asked is not None:
        return _asked_for(asked, code)
    if code in (exit_codes.INTERRUPTED, -signal.SIGINT):
        return "interrupted", "Ctrl-C"
    if code == exit_codes.PLEASE_RUN_AGAIN:
        return _stopped_itself(said)
    if code in (exit_codes.CANNOT_EXECUTE, exit_codes.NOT_FOUND):
        return "cannot start", f"exit code {code}: the command cannot be executed"
    if seen.permanent is not None:
        return "do not restart", f"{describe(code)}: {seen.permanent}"
    number = signal_of(code)
    killed = number == signal.SIGKILL
    if seen.oom_kills_here or (killed and seen.oom_kills_anywhere):
        where = "the job's memory group" if seen.oom_kills_here else "this machine"
        return "out of memory", f"{describe(code)}, and the kernel killed for memory in {where}"
    if number is not None:
        return "signal", describe(code)
    return "exit code", describe(code)


def _ended_well(last: Beat | None) -> tuple[Cause, str]:
    """Exit code 0. The training's own last word counts for more: a script may have caught its error, or have
    gone on to its end although it was stopped (on_stop="return")."""
    if last is not None and last.phase == "failed":
        return "exit code", f"exit code 0, but the training failed{': ' + last.why if last.why else ''}"
    if last is not None and last.phase == "stopped":
        return _stopped_itself(last.why)
    return "finished", "exit code 0"


def describe(code: int) -> str:
    """ "killed by SIGSEGV", "exit code 1"."""
    number = signal_of(code)
    if number is None:
        return f"exit code {code}"
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"killed by {name}" if code < 0 else f"exit code {code} ({name})"


def _asked_for(asked: str, code: int) -> tuple[Cause, str]:
    detail = f"asked to stop ({asked}): {describe(code)}"
    if asked == "preemption":
        return "preemption", detail
    if asked == "time limit":
        return "time limit", detail
    return ("interrupted" if asked == "SIGINT" else "stopped"), detail


def _stopped_itself(said: str) -> tuple[Cause, str]:
    if said.startswith(SAYS_DEADLINE):
        return "time limit", said
    if said.startswith(SAYS_NOTICE):
        return "preemption", said
    return "stopped", said or "exit code 75: asks to be run again"


@dataclass(frozen=True)
class RestartRules:
    """`no_progress` consecutive attempts without a new checkpoint, or `restarts` in all, and that is it."""

    restarts: int = 100
    no_progress: int = 3
    first_pause: float = 1.0
    longest_pause: float = 300.0


@dataclass(frozen=True)
class Tally:
    """What has happened so far, over all attempts of one supervisor."""

    attempts: int = 0
    failures: int = 0
    without_progress: int = 0

    def after(self, end: AttemptEnd, *, progressed: bool) -> Tally:
        return Tally(
            attempts=self.attempts + 1,
            failures=self.failures + (not end.planned),
            without_progress=0 if progressed else self.without_progress + 1,
        )


@dataclass(frozen=True)
class Move:
    """Start again after `pause` seconds, or end with `exit_code`."""

    why: str
    pause: float = 0.0
    exit_code: int | None = None


def got_on(before: str | None, after: str | None, *, visible: bool, seconds: float) -> bool:
    """Whether an attempt made progress: its newest checkpoint is another one than before.

    Where nobody can see the program's checkpoints, having lived for a while must do.
    """
    return after is not None and after != before if visible else seconds >= LIVED_LONG_ENOUGH


def next_move(
    end: AttemptEnd, tally: Tally, rules: RestartRules, *, seconds_left: float | None, stopping: bool
) -> Move:
    """`tally` includes this end. `stopping`: the supervisor itself was asked to stop."""
    if end.cause == "finished":
        return Move("the work is complete", exit_code=exit_codes.FINISHED)
    if end.cause == "do not restart":
        return Move(end.detail, exit_code=exit_codes.DO_NOT_RESTART)
    if end.cause == "halted":
        return Move(end.detail, exit_code=exit_codes.DO_NOT_RESTART)
    if end.cause == "interrupted":
        return Move("interrupted; run the same command to continue", exit_code=exit_codes.INTERRUPTED)
    if end.cause == "cannot start":
        return Move(end.detail, exit_code=end.returncode)
    if stopping or end.cause in ("preemption", "time limit"):
        return Move(f"{end.cause}; run the same command to continue", exit_code=exit_codes.PLEASE_RUN_AGAIN)
    if rules.no_progress and tally.without_progress >= rules.no_progress:
        many = "1 attempt" if tally.without_progress == 1 else f"{tally.without_progress} attempts in a row"
        return Move(
            f"gave up: {many} made no new checkpoint; the last ended by {end.cause} ({end.detail})",
            exit_code=exit_codes.NO_PROGRESS,
        )
    if tally.failures > rules.restarts:
        return Move(
            f"gave up: the budget of {rules.restarts} restarts is used up; "
            f"the last attempt ended by {end.cause} ({end.detail})",
            exit_code=exit_codes.OUT_OF_RESTARTS,
        )
    pause = 0.0 if end.planned else backoff(tally.without_progress, rules)
    if seconds_left is not None and pause >= seconds_left:
        return Move("the time limit leaves no room for a restart", exit_code=exit_codes.PLEASE_RUN_AGAIN)
    after = f" in {format_seconds(pause)}" if pause else ""
    return Move(f"starting again{after}", pause=pause)


def backoff(without_progress: int, rules: RestartRules) -> float:
    """Doubles with every attempt that got nowhere; a crash after progress is restarted almost at once."""
    return min(rules.first_pause * 2.0 ** max(without_progress - 1, 0), rules.longest_pause)
