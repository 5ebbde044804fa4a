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
from holdfast.jobs.attempts import Tally
from holdfast.keeper.chores import Chores
from holdfast.keeper.departures import PREEMPTION
from holdfast.keeper.lead import Knowledge, Lead, Report
from holdfast.keeper.meeting import Meeting
from holdfast.keeper.node import Node
from holdfast.keeper.post import Post
from holdfast.keeper.pulse import somebody_leads
from holdfast.keeper.seek import GivenUp, Link, dial, seek
from holdfast.keeper.settings import KeeperSettings
from holdfast.keeper.voice import Beating
from holdfast.keeper.wake import Wake
from holdfast.keeper.world import World

LOOK_SECONDS = 1.0
SEEK_PAUSE = 0.2
LEAD_ENDS_SECONDS = 15.0


class Keeper:
    """`report` hears what happens to the job, on the node that leads. `leaving` answers why this machine will
    be taken away, or None. `why` says, afterwards, what the exit code means this time."""

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
        # Leaders that were lost. They are not asked again.
        self._gone: set[int] = set()
        self._lead: Lead | None = None
        self._link: Link | None = None
        self._asked: str | None = None
        self.why = ""

    def run(self) -> int:
        """Until the job is over, here or everywhere. Returns the exit code, documented in `exit_codes`."""
        settings = self._settings
        self._meeting = Meeting(settings.meet)
        with contextlib.ExitStack() as opened:
            self._wake = opened.enter_context(Wake())
            beats = opened.enter_context(
                tempfile.TemporaryDirectory(prefix="holdfast-run-", dir=_memory_folder())
            )
            self._node = Node(
                self._command, settings, self._environ, Path(beats), self._clock, self._open_output
            )
            self._post = Post(
                settings.address, self._meeting.token, self._clock, silence_seconds=settings.silence_seconds
            )
            opened.callback(self._post.close)
            self._me = self._meeting.register(settings.address, self._post.port, settings.host)
            opened.callback(self._unregister)
            self._chores = Chores(self._me, self._meeting.token, self._wake.work_done)
            opened.callback(self._chores.close)
            opened.callback(lambda: self._node.end(self._pause))
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
            beating = Beating(lambda link=link: [link.voice], self._settings.beat_seconds)  # type: ignore[misc]
            code: int | None = None
            try:
                code = self._follow(link)
            except (OSError, HoldfastError) as error:
                self._warn(f"{link.leader} does not lead any more: {error}")
                self._gone.add(link.leader.number)
            finally:
                self._link = None
                beating.stop()
                link.close()
                self._stop_leading()
                self._node.end(self._pause)
            if code is not None:
                return code

    # ---- whom to follow

    def _find_leader(self) -> Link | None:
        """None if this keeper was asked to stop meanwhile."""
        end = self._clock.monotonic() + self._settings.join_seconds
        # A leader that was just lost is not waited for once more; later on it may be back.
        passed_over = set(self._gone)
        while self._asked is None:
            found = seek(
                self._meeting, self._me, self._hello(), passed_over, self._clock,
                silence_seconds=self._settings.silence_seconds,
            )  # fmt: skip
            passed_over.clear()
            if found.link is not None:
                return found.link
            if not found.lower:
                limit = self._settings.pulse_seconds
                if not somebody_leads(self._meeting, self._me, limit, self._clock, self._pause):
                    return self._begin_to_lead()
                # It is this node that is cut off, or was: that leader must be asked again.
                self._gone.clear()
            if self._clock.monotonic() >= end:
                raise StoreUnavailable(
                    f"no keeper in {self._meeting.folder} has led for {self._settings.join_seconds:g} s",
                    hint="can all nodes reach each other?",
                )
            self._pause(SEEK_PAUSE)
        return None

    def _begin_to_lead(self) -> Link:
        newest, mine = self._meeting.newest_world(), self._knows.world
        if mine is not None and newest is not None and newest.generation > mine.generation:
            # Others led meanwhile, and are gone.
            self._knows = replace(self._knows, world=newest)
        self._lead = Lead(
            self._me, self._settings, self._meeting, self._knows, self._clock,
            gone=self._gone, report=self._report, newest_checkpoint=self._newest_checkpoint,
        )  # fmt: skip
        self._post.hand_over(self._lead.roster)
        self._lead.start()
        silence = self._settings.silence_seconds
        link = dial(self._me, self._meeting.token, self._clock, silence_seconds=silence)
        link.ask(self._hello())
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
        """Until the job is over (its exit code), or its leader is (None, or an error)."""
        heard = self._clock.monotonic()
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._wake, selectors.EVENT_READ)
            waiting.register(link, selectors.EVENT_READ)
            while True:
                due, now = self._node.due, self._clock.monotonic()
                pause = LOOK_SECONDS if due is None else min(max(due - now, 0.0), LOOK_SECONDS)
                if any(key.fileobj is link for key, _ in waiting.select(pause)):
                    message = link.voice.hear()
                    heard = self._clock.monotonic()
                    if message.get("say") == "step down":
                        return None
                    if message.get("say") == "exit":
                        self._say({"say": "bye"})
                        return self._exit(int(message["code"]), str(message.get("why")))
                    self._heed(message)
                if self._clock.monotonic() - heard > self._settings.silence_seconds:
                    raise TimeoutError(f"no sign of life for {self._settings.silence_seconds:g} s")
                self._heed_signals()
                if self._asked is not None and self._is_spare:
                    self._say({"say": "bye"})
                    return self._exit(exit_codes.PLEASE_RUN_AGAIN, f"{self._asked}: this spare node leaves")
                self._node.look(self._asked, self._say, self._stopped)
                for result in self._chores.finished():
                    self._say(result)

    def _heed(self, message: dict[str, Any]) -> None:
        said, generation = message.get("say"), message.get("generation")
        world = self._knows.world
        if said == "world":
            tally = Tally(**message["tally"])
            world = World.from_json(message["world"])
            self._knows = Knowledge(world, tally, message["run"], message["newest"])
            self._node.run = self._node.run or message["run"]
        elif said == "run":
            self._knows = replace(self._knows, run=message["run"])
            self._node.run = self._node.run or message["run"]
        elif said == "port":
            self._say({"say": "port", "generation": generation, "port": _free_port()})
        elif said == "start" and world is not None and world.generation == generation:
            index = world.index_of(self._me.number)
            if index is not None:
                self._chores.stop_serving()
                self._node.start(world, index, int(message["port"]), int(message["attempt"]), self._say)
        elif said == "stop":
            self._node.stop(int(message["generation"]), float(message["grace"]))
        elif said == "chore":
            self._chores.do(message)

    def _stopped(self, generation: int) -> None:
        # What the node has now is the measure of progress. Looked up behind: a disk may take its time.
        self._chores.do({"chore": "stopped", "generation": generation, "run": self._node.run})

    # ---- being asked to stop

    def _heed_signals(self) -> None:
        for number in self._wake.stop_signals():
            self._stop_is_asked(signal.Signals(number).name, number)
        if self._asked is None:
            deadline = self._settings.deadline
            if (notice := self._leaving()) is not None:
                self._stop_is_asked(PREEMPTION, signal.SIGTERM, {"say": "leaving", "why": notice})
            elif deadline is not None and self._clock.wall() >= deadline.at:
                self._stop_is_asked("time limit", signal.SIGTERM)

    def _stop_is_asked(self, why: str, number: int, message: dict[str, Any] | None = None) -> None:
        # A lost terminal is passed on as a request to stop, which a training can answer with a checkpoint.
        self._node.signal(signal.SIGTERM if number == signal.SIGHUP else number)
        if self._asked is None:
            self._asked = why
            if not self._is_spare:
                self._say(message or {"say": "asked", "why": why})

    @property
    def _is_spare(self) -> bool:
        """Whether the job can go on without this node: others are training."""
        world = self._knows.world
        return self._lead is None and world is not None and world.index_of(self._me.number) is None

    # ---- small things

    def _pause(self, seconds: float) -> None:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._wake, selectors.EVENT_READ)
            waiting.select(seconds)
        self._heed_signals()

    def _say(self, message: dict[str, Any]) -> None:
        if self._link is not None:
            self._link.voice.say(message)

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
