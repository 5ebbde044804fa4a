"""The keeper of one node: follows whoever leads, runs the workers it is told to, leads if nobody else does.

It outlives its workers; they never outlive it, nor their leader: without one, nobody could end a generation
everywhere. One thread does everything that concerns workers; leading has a thread of its own, and speaks to
this one as to all others, over TCP.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.events import Warned
from holdfast.jobs import exit_codes
from holdfast.jobs.attempts import AttemptEnd, Tally
from holdfast.jobs.watchdog import Watchdog
from holdfast.keeper.chores import Chores
from holdfast.keeper.flush import flush
from holdfast.keeper.lead import Knowledge, Lead, Report
from holdfast.keeper.meeting import Meeting
from holdfast.keeper.post import Post
from holdfast.keeper.seek import GivenUp, Link, dial, seek
from holdfast.keeper.settings import KeeperSettings
from holdfast.keeper.wake import Wake
from holdfast.keeper.words import end_to_json
from holdfast.keeper.workers import Place, Workers, cannot_start
from holdfast.keeper.world import World

LOOK_SECONDS = 1.0
SEEK_PAUSE = 0.2
GONE_SECONDS = 30.0
LEAD_ENDS_SECONDS = 15.0


class Keeper:
    """`report` hears what happens to the job, on the node that leads. `leaving` answers why this machine will
    be taken away, or None."""

    def __init__(
        self,
        command: Sequence[str],
        settings: KeeperSettings,
        *,
        report: Report,
        newest_checkpoint: Callable[[str], str | None],
        leaving: Callable[[], str | None] = lambda: None,
        open_output: Callable[[int, int], IO[bytes] | None] = lambda attempt, rank: None,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._command = list(command)
        self._settings = settings
        self._report = report
        self._newest_checkpoint = newest_checkpoint
        self._leaving = leaving
        self._open_output = open_output
        self._environ = dict(os.environ if environ is None else environ)
        self._clock = clock or SystemClock()
        self._knows = Knowledge()
        self._gone: set[int] = set()
        self._watchdogs = [Watchdog(settings.hang) for _ in range(settings.procs_per_node)]
        self._lead: Lead | None = None
        self._link: Link | None = None
        self._workers: Workers | None = None
        self._asked: str | None = None
        self._kill_at: float | None = None
        self._stopping = False
        self._run = settings.run
        self.why = ""

    def run(self) -> int:
        """Until the job is over, here or everywhere. Returns the exit code, documented in `exit_codes`."""
        self._meeting = Meeting(self._settings.meet)
        with contextlib.ExitStack() as opened:
            self._wake = opened.enter_context(Wake())
            self._folder = Path(
                opened.enter_context(
                    tempfile.TemporaryDirectory(prefix="holdfast-run-", dir=_memory_folder())
                )
            )
            self._post = Post(
                self._settings.address, self._meeting.token, self._clock,
                silence_seconds=self._settings.silence_seconds,
            )  # fmt: skip
            opened.callback(self._post.close)
            self._me = self._meeting.register(self._settings.address, self._post.port)
            opened.callback(self._unregister)
            self._chores = Chores(self._me, self._meeting.token, self._environ, self._wake.work_done)
            opened.callback(self._chores.close)
            opened.callback(self._end_workers)
            try:
                return self._live()
            except GivenUp as given_up:
                return self._exit(exit_codes.GIVEN_UP, str(given_up))

    def _live(self) -> int:
        while True:
            link = self._find_leader()
            if link is None:
                return self._exit(exit_codes.PLEASE_RUN_AGAIN, f"{self._asked} while looking for a leader")
            self._link = link
            code: int | None = None
            try:
                code = self._follow(link)
            except OSError as error:
                self._warn(f"{link.leader} does not lead any more: {error}")
                self._gone.add(link.leader.number)
            finally:
                link.close()
                if code is None:
                    self._end_workers()
                self._stop_leading()
            if code is not None:
                return code

    # ---- whom to follow

    def _find_leader(self) -> Link | None:
        end = self._clock.monotonic() + self._settings.join_seconds
        while self._asked is None:
            found = seek(
                self._meeting, self._me, self._hello(), self._gone, self._clock,
                silence_seconds=self._settings.silence_seconds,
            )  # fmt: skip
            if found.link is not None:
                return found.link
            if not found.lower:
                return self._begin_to_lead()
            if self._clock.monotonic() >= end:
                raise StoreUnavailable(
                    f"no keeper in {self._meeting.folder} has led for {self._settings.join_seconds:g} s",
                    hint="can all nodes reach each other?",
                )
            with selectors.DefaultSelector() as waiting:
                waiting.register(self._wake, selectors.EVENT_READ)
                waiting.select(SEEK_PAUSE)
            self._heed_signals()
        return None

    def _begin_to_lead(self) -> Link:
        newest = self._meeting.newest_world()
        mine = self._knows.world
        if mine is not None and newest is not None and newest.generation > mine.generation:
            # Others led meanwhile, and are gone.
            self._knows = replace(self._knows, world=newest)
        self._lead = Lead(
            self._me, self._settings, self._meeting, self._knows, self._clock,
            gone=self._gone, report=self._report, newest_checkpoint=self._newest_checkpoint, flush=flush,
        )  # fmt: skip
        self._post.hand_over(self._lead.roster)
        self._lead.start()
        link = dial(
            self._me, self._meeting.token, self._clock, silence_seconds=self._settings.silence_seconds
        )
        link.channel.send(self._hello())
        link.channel.receive()
        link.channel.limit(None)
        return link

    def _stop_leading(self) -> None:
        self._post.hand_over(None)
        lead, self._lead = self._lead, None
        if lead is not None:
            lead.join(LEAD_ENDS_SECONDS)

    def _hello(self) -> dict[str, Any]:
        return {**vars(self._me), "must_agree": self._settings.must_agree}

    # ---- following

    def _follow(self, link: Link) -> int | None:
        """Until the job is over (its exit code), or the leader is (None, or OSError)."""
        heard = self._clock.monotonic()
        beat_at = heard
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._wake, selectors.EVENT_READ)
            waiting.register(link, selectors.EVENT_READ)
            while True:
                pause = min(beat_at, self._kill_at or beat_at) - self._clock.monotonic()
                ready = waiting.select(max(min(pause, LOOK_SECONDS), 0.0))
                if any(key.fileobj is link for key, _ in ready):
                    message = link.channel.receive()
                    heard = self._clock.monotonic()
                    if message.get("say") == "step down":
                        return None
                    if message.get("say") == "exit":
                        link.channel.send({"say": "bye"})
                        return self._exit(int(message["code"]), str(message.get("why")))
                    self._heed(message)
                now = self._clock.monotonic()
                if now - heard > self._settings.silence_seconds:
                    raise TimeoutError(f"no sign of life for {self._settings.silence_seconds:g} s")
                self._heed_signals()
                if self._asked is not None and self._is_spare:
                    link.channel.send({"say": "bye"})
                    return self._exit(exit_codes.PLEASE_RUN_AGAIN, f"{self._asked}: this spare node leaves")
                self._look_at_workers(now)
                for result in self._chores.finished():
                    self._say(result)
                if now >= beat_at:
                    beat_at = now + self._settings.beat_seconds
                    self._say({"say": "beat", **self._seen()})

    def _heed(self, message: dict[str, Any]) -> None:
        said, generation = message.get("say"), message.get("generation")
        if said == "world":
            self._knows = Knowledge(
                World.from_json(message["world"]), Tally(**message["tally"]), message["run"],
                message["asked"], message["newest"],
            )  # fmt: skip
            self._run = self._run or message["run"]
        elif said == "port":
            self._say({"say": "port", "generation": generation, "port": _free_port()})
        elif said == "start" and self._knows.world is not None and self._knows.world.generation == generation:
            self._start(self._knows.world, int(message["port"]), int(message["attempt"]))
        elif said == "stop":
            self._stopping = True
            self._kill_at = self._clock.monotonic() + float(message["grace"])
        elif said == "chore":
            self._chores.do(message)

    # ---- workers

    def _start(self, world: World, port: int, attempt: int) -> None:
        index = world.index_of(self._me.number)
        if index is None or self._workers is not None:
            return
        self._chores.forget()
        run_id = f"holdfast-{os.path.basename(self._meeting.folder)}"
        place = Place(world, index, port, attempt, run_id, self._settings.deadline)
        try:
            self._workers = Workers(
                self._command, place, self._environ, self._folder, self._watchdogs,
                self._clock.monotonic(), self._open_output,
            )  # fmt: skip
        except OSError as error:
            self._tell_end(world.generation, 0, cannot_start(self._command, error))

    def _look_at_workers(self, now: float) -> None:
        workers = self._workers
        if workers is None:
            if self._stopping:
                self._say_stopped()
            return
        for local_rank, end in workers.look(now, self._asked):
            self._tell_end(workers.place.world.generation, local_rank, end)
        self._run = self._run or workers.run
        gone = workers.are_gone if self._kill_at is not None else False
        if self._kill_at is not None and not gone and now >= self._kill_at:
            workers.kill()
            # Killed processes are gone in a moment; those that wait for a dead file system, perhaps never.
            self._kill_at = now + 0.1
        if self._stopping and gone:
            self._forget_workers()
            self._say_stopped()

    def _end_workers(self) -> None:
        """At once, without anybody to tell."""
        workers, end = self._workers, self._clock.monotonic() + GONE_SECONDS
        if workers is not None:
            workers.kill()
            while not workers.are_gone and self._clock.monotonic() < end:
                with selectors.DefaultSelector() as waiting:
                    waiting.register(self._wake, selectors.EVENT_READ)
                    waiting.select(0.05)
                self._heed_signals()
            self._forget_workers()
        self._stopping, self._kill_at = False, None

    def _forget_workers(self) -> None:
        if self._workers is not None:
            self._workers.clear()
        self._workers = None
        self._kill_at = None

    def _say_stopped(self) -> None:
        self._stopping, self._kill_at = False, None
        self._say({"say": "stopped", "newest": self._chores.newest_here(self._run, self._node)})

    def _tell_end(self, generation: int, local_rank: int, end: AttemptEnd) -> None:
        told = {"generation": generation, "local_rank": local_rank, "end": end_to_json(end)}
        self._say({"say": "ended", **told, **self._seen()})

    # ---- being asked to stop

    def _heed_signals(self) -> None:
        asked: list[tuple[str, int]] = [
            (signal.Signals(n).name, n if n != signal.SIGHUP else signal.SIGTERM)
            for n in self._wake.stop_signals()
        ]
        if not asked and self._asked is None:
            leaving = self._leaving()
            deadline = self._settings.deadline
            if leaving is not None:
                asked = [("preemption", signal.SIGTERM)]
            elif deadline is not None and self._clock.wall() >= deadline.at:
                asked = [("time limit", signal.SIGTERM)]
        for why, number in asked:
            if self._workers is not None:
                self._workers.signal(number)
            if self._asked is None:
                self._asked = why
                self._kill_at = self._clock.monotonic() + self._settings.grace
                if self._link is not None and not self._is_spare:
                    with contextlib.suppress(OSError):
                        self._say({"say": "asked", "why": why})

    @property
    def _is_spare(self) -> bool:
        """Whether the job can go on without this node: others are training."""
        world = self._knows.world
        return self._lead is None and world is not None and world.index_of(self._me.number) is None

    # ---- small things

    @property
    def _node(self) -> str | None:
        world = self._knows.world
        index = world.index_of(self._me.number) if world is not None else None
        return None if world is None or index is None else world.seats[index].node

    def _seen(self) -> dict[str, Any]:
        return {} if self._run is None else {"run": self._run}

    def _say(self, message: dict[str, Any]) -> None:
        if self._link is not None:
            self._link.channel.send(message)

    def _exit(self, code: int, why: str) -> int:
        self.why = why
        return code

    def _warn(self, message: str) -> None:
        self._report(Warned(time=self._clock.wall(), message=message), None)

    def _unregister(self) -> None:
        with contextlib.suppress(HoldfastError):
            self._meeting.unregister(self._me.number)


def _free_port() -> int:
    """For rank 0's store. Taken by somebody else in the meantime, it costs one more attempt."""
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _memory_folder() -> str | None:
    """Heartbeats in memory: a hung disk must not look like a hung training."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None
