"""What the leading keeper does: gathers nodes, founds a generation, watches it, judges its end, begins again.

One thread, one thing after the other; all it waits for comes through the roster's inbox, and every wait has
a limit. What it knows the others know too (the world, the tally), so any of them can go on in its place.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, StoreError
from holdfast.events import AttemptEnded, AttemptStarted, Event, SupervisorEnded, Warned
from holdfast.jobs import exit_codes
from holdfast.jobs.attempts import AttemptEnd, Move, Tally, got_on, next_move, signal_of
from holdfast.keeper.departures import FAREWELL_SECONDS, Departures, HandedOver
from holdfast.keeper.flush import flush
from holdfast.keeper.gather import Gathering, TooFewNodes
from holdfast.keeper.generation import Generation
from holdfast.keeper.meeting import Meeting
from holdfast.keeper.pulse import Pulse
from holdfast.keeper.roster import Gone, News, Roster, Said
from holdfast.keeper.settings import KeeperSettings
from holdfast.keeper.world import Card, World, changes, take_seats

Report = Callable[[Event, str | None], None]


class SteppedDown(Exception):
    """Somebody else has founded a newer generation."""


@dataclass(frozen=True)
class Knowledge:
    """What a successor must know. Every keeper keeps the last that it was told."""

    world: World | None = None
    tally: Tally = field(default_factory=Tally)
    run: str | None = None
    # The newest checkpoint that any node was known to have: what progress is measured by.
    newest: str | None = None


class Lead:
    """Runs in a thread of its own from `start` until it has dismissed everybody or stepped down."""

    def __init__(
        self,
        me: Card,
        settings: KeeperSettings,
        meeting: Meeting,
        knows: Knowledge,
        clock: Clock,
        *,
        gone: set[int],
        report: Report,
        newest_checkpoint: Callable[[str], str | None],
    ) -> None:
        self.me = me
        self.settings = settings
        self.meeting = meeting
        self.clock = clock
        self.world = knows.world
        # A leader that this keeper has lost is not waited for: should it live, only one of us can found the
        # next generation, and the other will see that.
        self.lost: set[int] = {*knows.world.lost, *(gone & knows.world.keepers)} if knows.world else set()
        self.asked: str | None = None
        self.run_folder = settings.run or knows.run
        self._tally = knows.tally
        self._newest = knows.newest
        self._newest_before = knows.newest
        # Whatever was founded before this leader began is not against it.
        self._generation = knows.world.generation if knows.world else meeting.newest_generation()
        self._storage_failed = 0
        self._is_over = False
        self._is_protected = False
        self.departures = Departures(self)
        self._report = report
        self._newest_checkpoint = newest_checkpoint
        self._gathering = Gathering(settings, meeting, clock)
        self.roster = Roster(
            clock,
            beat_seconds=settings.beat_seconds,
            silence_seconds=settings.silence_seconds,
            refuse=self._refuse,
        )
        self._pulse = Pulse(meeting, me.number, settings.beat_seconds)
        self._thread = threading.Thread(target=self._run, name="holdfast-lead", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _refuse(self, hello: dict[str, Any]) -> dict[str, Any] | None:
        if self._is_over:
            return {"answer": "not leading"}
        if hello.get("number") in self.lost:
            return {"answer": "lost"}
        theirs, ours = hello.get("must_agree"), self.settings.must_agree
        if theirs != ours:
            return {"answer": "refused", "why": f"it was started with {theirs}, and {self.me} with {ours}"}
        return None

    def _run(self) -> None:
        try:
            self._dismiss(*self._lead())
        except SteppedDown:
            self.roster.tell_all({"say": "step down"})
        except HandedOver:
            self._hand_over()
        except BaseException as error:
            why = error.message if isinstance(error, HoldfastError) else repr(error)
            self._dismiss(exit_codes.STOPPED_UNSAVED, f"the leading keeper failed: {why}")
            if not isinstance(error, HoldfastError):
                raise
        finally:
            self.roster.close()
            self._pulse.stop()
            self.meeting.remove_pulse(self.me.number)

    def _lead(self) -> tuple[int, str]:
        while True:
            self.departures.let_go(is_protected=self._is_protected)
            try:
                cards = self._gathering.gather(self)
            except TooFewNodes as few:
                return self._leave(exit_codes.TOO_FEW_NODES, str(few))
            if self.asked is not None:
                code = exit_codes.INTERRUPTED if self.asked == "SIGINT" else exit_codes.PLEASE_RUN_AGAIN
                return self._leave(code, f"{self.asked}; run the same command to continue")
            world = self._found(cards) if cards else None
            if world is None:
                continue
            move = self._attempt(world)
            if move.exit_code is not None:
                return self._leave(move.exit_code, move.why)
            self.hear_until(lambda: self.asked is not None, move.pause)

    # ---- one generation

    def _found(self, cards: list[Card]) -> World | None:
        """The next generation; None if the shared file system did not answer: then all is looked at anew."""
        try:
            world = self._next_world(cards)
            if not self.meeting.found(world):
                raise SteppedDown
        except StoreError as error:
            self._storage_failed += 1
            if self._storage_failed > self.settings.storage_tries:
                raise
            self.warn(f"no generation can be founded yet: {error}")
            self.hear_until(lambda: self.asked is not None, self.settings.storage_pause)
            return None
        self._storage_failed = 0
        for change in changes(self.world, world):
            self.warn(change)
        self.world, self._generation = world, world.generation
        return world

    def _next_world(self, cards: list[Card]) -> World:
        earlier = self.world or self.meeting.newest_world()
        return World(
            generation=self.meeting.newest_generation() + 1,
            leader=self.me.number,
            procs_per_node=self.settings.procs_per_node,
            seats=take_seats(earlier.seats if earlier else (), cards, self.settings.nodes),
            lost=tuple(sorted(self.lost)),
        )

    def _attempt(self, world: World) -> Move:
        started, attempt = self.clock.monotonic(), self._tally.attempts
        self._newest_before = self._look_newest()
        self._tell_world(world)
        generation = Generation(self, world)
        end = generation.start(attempt)
        if end is None:
            self.tell(AttemptStarted(time=self.clock.wall(), attempt=attempt, pid=os.getpid()))
            end = generation.watch()
        if end.cause != "finished":
            end = generation.stop(end)
        self._is_protected = generation.is_protected
        change = self.departures.explain(end, world)
        return self._judge(change or end, self.clock.monotonic() - started, is_change=change is not None)

    def _tell_world(self, world: World) -> None:
        self.roster.tell_all(
            {
                "say": "world", "world": world.to_json(), "tally": asdict(self._tally),
                "run": self.run_folder, "newest": self._newest,
            }
        )  # fmt: skip

    def _judge(self, end: AttemptEnd, seconds: float, *, is_change: bool) -> Move:
        after = self._look_newest()
        progressed = got_on(self._newest_before, after, visible=self.run_folder is not None, seconds=seconds)
        # A node that goes is not the program's fault; how often that can happen, the number of nodes limits.
        without = is_change or end.cause == "node lost"
        attempt, failures = self._tally.attempts, self._tally.failures
        self._tally = self._tally.after(end, progressed=progressed or without)
        if without:
            self._tally = replace(self._tally, failures=failures)
        deadline = self.settings.deadline
        left = None if deadline is None else deadline.at - self.clock.wall()
        move = next_move(
            end, self._tally, self.settings.rules, seconds_left=left, stopping=self.asked is not None
        )
        if is_change or (without and move.exit_code is None):
            move = Move("going on without it")
        self.tell(
            AttemptEnded(
                time=self.clock.wall(), attempt=attempt, cause=end.cause, detail=end.detail,
                planned=end.planned, seconds=seconds, checkpoint=after,
                will_restart=move.exit_code is None, then=move.why,
                exit_code=end.returncode if end.returncode >= 0 else None, signal=signal_of(end.returncode),
            )
        )  # fmt: skip
        return move

    # ---- the end

    def _leave(self, code: int, why: str) -> tuple[int, str]:
        why = "; ".join(filter(None, (why, flush(self))))
        self.tell(
            SupervisorEnded(time=self.clock.wall(), attempts=self._tally.attempts, exit_code=code, why=why)
        )
        return code, why

    def _dismiss(self, code: int, why: str) -> None:
        self.roster.tell_all({"say": "exit", "code": code, "why": why})
        self.hear_until(lambda: not self.roster.members, FAREWELL_SECONDS)
        for number in self.lost:
            self.meeting.unregister(number)
            self.meeting.remove_pulse(number)

    def _hand_over(self) -> None:
        """All know what this leader knew, and look for the next one; its own keeper ends."""
        self._is_over = True
        if self.world is not None:
            self._tell_world(self.world)
        for number in list(self.roster.members):
            mine = number == self.me.number
            self.roster.tell(number, self.departures.farewell(number) if mine else {"say": "step down"})
        self.hear_until(lambda: not self.roster.members, FAREWELL_SECONDS)

    # ---- what it hears and says

    def hear(self, seconds: float) -> News | None:
        """What comes next; what concerns the leader always, it has noted already."""
        news = self.roster.next(seconds)
        if isinstance(news, Gone) and self.world is not None and news.card.number in self.world.keepers:
            self.lost.add(news.card.number)
        if isinstance(news, Said):
            if self.run_folder is None and news.message.get("run") is not None:
                self.run_folder = str(news.message["run"])
                # A successor must be able to save what there is.
                self.roster.tell_all({"say": "run", "run": self.run_folder})
            self._newest = max(self._newest or "", news.message.get("newest") or "") or None
            if news.word == "asked":
                self.asked = self.asked or str(news.message["why"])
            elif news.word == "leaving":
                self.departures.announce(news.card.number, str(news.message["why"]))
        return news

    def hear_until(self, done: Callable[[], bool], seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while not done() and (left := end - self.clock.monotonic()) > 0:
            self.hear(left)

    def require_newest(self) -> None:
        """Raises SteppedDown if a newer generation exists than the last of this leader."""
        try:
            newest = self.meeting.newest_generation()
        except HoldfastError:
            # A shared file system that stumbles is no reason to end a training.
            return
        if newest > self._generation:
            raise SteppedDown

    def tell(self, event: Event) -> None:
        self._report(event, self.run_folder)

    def warn(self, message: str) -> None:
        self.tell(Warned(time=self.clock.wall(), message=message))

    def _look_newest(self) -> str | None:
        shared = self._newest_checkpoint(self.run_folder) if self.run_folder is not None else None
        self._newest = max(self._newest or "", shared or "") or None
        return self._newest
