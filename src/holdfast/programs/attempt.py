"""One attempt of a program: start it, look at it once a second, stop it in time, say how it ended.

Starting again is the business of `holdfast run`. How a program is checkpointed is the business of a driver;
nothing here knows about recipes or DMTCP.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Protocol

from holdfast.clock import Clock
from holdfast.errors import SaveError, SetupError, StoreError
from holdfast.events import Emit, RunEnded, RunStarted, SaveFailed, Warned
from holdfast.jobs.attempts import SAYS_DEADLINE
from holdfast.jobs.environment import WallDeadline
from holdfast.jobs.exit_codes import (
    CANNOT_EXECUTE,
    DO_NOT_RESTART,
    FINISHED,
    INTERRUPTED,
    NOT_FOUND,
    PLEASE_RUN_AGAIN,
)
from holdfast.jobs.halt import SAYS_HALTED, read_halt
from holdfast.jobs.heartbeat import SECONDS_BETWEEN, HeartbeatWriter
from holdfast.jobs.limit_warning import announces_the_limit
from holdfast.jobs.supervisor_child import STOP_SIGNALS, Child, signals_blocked
from holdfast.programs.generations import Generations

log = logging.getLogger("holdfast")
LOOK_SECONDS = 1.0
GONE_SECONDS = 30.0
# Somebody else ended the program; that says nothing against the checkpoint it had started from.
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)


class Driver(Protocol):
    """What differs between the ways to checkpoint a program. SaveError and StoreError mean: not this time."""

    @property
    def stop_seconds(self) -> float:
        """How long a stop may take before the program is killed."""
        ...

    @property
    def stop_before(self) -> float:
        """How long before the end of the job to ask for it."""
        ...

    @property
    def knows_its_cost(self) -> bool:
        """Whether `stop_before` was measured, so that a scheduler's warning says nothing new."""
        ...

    @property
    def ignored_signals(self) -> Collection[signal.Signals]:
        """What a scheduler may send to every process of a job, and the program must not die of."""
        ...

    @property
    def generation(self) -> int:
        """The number of the newest generation."""
        ...

    def start(self, seconds_left: float | None) -> list[str]:
        """Prepare the folder and return the command line."""
        ...

    def look(self) -> None:
        """Called about once a second while the program runs: keep a generation if it is time."""
        ...

    def stop(self, child: Child, why: str) -> None:
        """Make the program save and end; does not wait for the end."""
        ...

    def ended(self, returncode: int, *, stopping: bool) -> bool:
        """Keep what is left to keep. Whether the work is complete. SetupError: it was asked for wrongly."""
        ...


class Attempt:
    def __init__(
        self,
        generations: Generations,
        driver: Driver,
        clock: Clock,
        emit: Emit,
        *,
        deadline: WallDeadline | None = None,
        environ: Mapping[str, str] | None = None,
        umask: int = -1,
    ) -> None:
        """`umask` is for the program, where ours keeps its images from others."""
        self._umask = umask
        self._generations = generations
        self._driver = driver
        self._clock = clock
        self._emit = emit
        self._deadline = deadline
        self._environ = os.environ if environ is None else environ
        self._stopping: str | None = None
        self._failing: str | None = None
        self._heartbeat = HeartbeatWriter(None, generations.where)

    def run(self) -> int:
        """The exit code to end with, as `jobs.exit_codes` documents it. The store must be claimed."""
        with signals_blocked() as waiting:
            # Not earlier: a thread keeps what was blocked when it began, and a signal that finds one which
            # blocks nothing would end this process and leave the program alone.
            self._generations.start_copying()
            return self._run(waiting)

    def _run(self, waiting: set[signal.Signals]) -> int:
        if self._generations.is_complete:
            log.info("holdfast: the work of %s is complete; nothing to do", self._generations.where)
            return FINISHED
        if (note := self._halt_note()) is not None:
            where = self._generations.where
            log.error("holdfast: %s is %s; `holdfast halt --clear %s` lets it run again", where, note, where)
            return DO_NOT_RESTART
        left = None if self._deadline is None else self._deadline.at - self._clock.wall()
        command = self._driver.start(left)
        self._emit(
            RunStarted(
                time=self._clock.wall(), step=self._driver.generation, host=os.uname().nodename,
                pid=os.getpid(), writer_epoch=self._generations.writer_epoch,
            )
        )  # fmt: skip
        self._heartbeat = HeartbeatWriter.from_environment(self._generations.where, self._environ)
        try:
            try:
                ignored = self._driver.ignored_signals
                child = Child(command, self._environ, ignored=ignored, umask=self._umask)
            except OSError as error:
                return self._cannot_start(command[0], error)
            return self._end(self._watch(child, waiting))
        finally:
            self._heartbeat.close()

    def _watch(self, child: Child, waiting: set[signal.Signals]) -> int:
        kill_at: float | None = None
        try:
            while True:
                got = signal.sigtimedwait(waiting, LOOK_SECONDS)
                returncode = child.returncode()
                if returncode is not None:
                    return returncode
                now = self._clock.monotonic()
                why = self._why_stop(got.si_signo if got else None)
                if why is not None and self._stopping is None:
                    self._stopping, kill_at = why, now + self._driver.stop_seconds
                    self._try(partial(self._driver.stop, child, why))
                elif self._stopping is None:
                    self._try(self._driver.look)
                elif kill_at is not None and now >= kill_at:
                    self._warn(f"the program did not stop within {self._driver.stop_seconds:.0f} s")
                    child.kill()
                    kill_at = now + GONE_SECONDS
                self._heartbeat.beat(now, self._driver.generation)
        finally:
            if child.returncode() is None:
                child.kill()

    def _why_stop(self, number: int | None) -> str | None:
        left = None if self._deadline is None else self._deadline.at - self._clock.wall()
        known = self._driver.knows_its_cost and announces_the_limit(number, left, self._environ)
        if number is not None and number in STOP_SIGNALS and not known:
            return signal.Signals(number).name
        if (note := self._halt_note()) is not None:
            return note
        if self._deadline is None or self._clock.wall() < self._deadline.at - self._driver.stop_before:
            return None
        return f"{SAYS_DEADLINE}: {self._deadline.source}"

    def _halt_note(self) -> str | None:
        try:
            note = read_halt(self._generations.where)
        except OSError:
            return None
        return None if note is None else str(note)

    def _try(self, save: Callable[[], None]) -> None:
        """A save that fails is said, and tried again later; the program must not suffer from it."""
        limit = self._driver.stop_seconds
        try:
            with signs_of_life(self._heartbeat, self._clock, self._driver.generation, limit):
                save()
        except (SaveError, StoreError) as error:
            # Tried again every second; said again when it is something else.
            if error.message != self._failing:
                self._failing = error.message
                log.warning("holdfast: no new generation: %s", error)
                step = self._driver.generation + 1
                self._emit(SaveFailed(time=self._clock.wall(), step=step, error=error.message))
        else:
            self._failing = None

    def _end(self, returncode: int) -> int:
        complete = False

        def last_look() -> None:
            nonlocal complete
            complete = self._driver.ended(returncode, stopping=self._stopping is not None)

        try:
            self._try(last_look)
        except SetupError as error:
            # Asked for in a way that cannot work: running again would not, either.
            log.error("holdfast: %s; %s", error.message, error.hint)
            self._emit(RunEnded(time=self._clock.wall(), step=self._driver.generation, how="error"))
            self._heartbeat.say(self._driver.generation, "failed")
            return DO_NOT_RESTART
        step = self._driver.generation
        if complete:
            self._emit(RunEnded(time=self._clock.wall(), step=step, how="finished"))
            self._heartbeat.say(step, "finished")
            return FINISHED
        if self._stopping is not None or returncode == 0:
            # Exit code 0 without the signs of completion: the program stopped itself, as for a time limit.
            why = self._stopping or f"{SAYS_DEADLINE}: the program ended before its work was complete"
            self._emit(RunEnded(time=self._clock.wall(), step=step, how="stopped", why=why))
            self._heartbeat.say(step, "stopped", why)
            if why.startswith(SAYS_HALTED):
                return DO_NOT_RESTART
            return INTERRUPTED if self._stopping == "SIGINT" else PLEASE_RUN_AGAIN
        if returncode not in _FROM_OUTSIDE:
            self._emit(RunEnded(time=self._clock.wall(), step=step, how="error"))
        self._heartbeat.say(step, "failed")
        return returncode if returncode > 0 else 128 - returncode

    def _cannot_start(self, program: str, error: OSError) -> int:
        log.error("holdfast: cannot start %s: %s", program, error.strerror)
        self._emit(RunEnded(time=self._clock.wall(), step=self._driver.generation, how="stopped"))
        return NOT_FOUND if error.errno == errno.ENOENT else CANNOT_EXECUTE

    def _warn(self, message: str) -> None:
        log.warning("holdfast: %s", message)
        self._emit(Warned(time=self._clock.wall(), message=message))


# ---- Signs of life while a save takes its time: gigabytes of a program's memory may need many minutes.
#
# Bounded: a save that never ends must look like the hang that it is.


@contextlib.contextmanager
def signs_of_life(heartbeat: HeartbeatWriter, clock: Clock, step: int, limit: float) -> Iterator[None]:
    """Beat from a thread until the block ends, but not longer than `limit` seconds."""
    if not heartbeat.is_watched:
        yield
        return
    done = threading.Event()

    def beat() -> None:
        end = clock.monotonic() + limit
        while not done.wait(SECONDS_BETWEEN) and (now := clock.monotonic()) < end:
            heartbeat.beat(now, step)

    thread = threading.Thread(target=beat, name="holdfast-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        # Before the next beat of the main thread: two writers would mix their counts.
        done.set()
        thread.join()
