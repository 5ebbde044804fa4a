"""What the leading keeper does: gathers nodes, founds a generation, watches it, judges its end, begins again.

One thread, one thing after the other; all it waits for comes through the roster's inbox, and every wait has
a limit. What it knows the others know too (the world, the tally), so any of them can go on in its place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.events import AttemptEnded, AttemptStarted, Event, SupervisorEnded, Warned
from holdfast.jobs import exit_codes
from holdfast.jobs.attempts import AttemptEnd, Move, Tally, got_on, next_move, signal_of
from holdfast.keeper.gather import Gathering, TooFewNodes
from holdfast.keeper.meeting import Meeting
from holdfast.keeper.roster import Gone, News, Roster, Said
from holdfast.keeper.settings import KeeperSettings
from holdfast.keeper.words import end_from_json
from holdfast.keeper.world import Card, World, take_seats

# Beyond the workers' own grace: until a killed process must be gone, as the supervisor has it, and a margin.
STOPPED_SECONDS = 40.0
PORT_SECONDS = 30.0
FAREWELL_SECONDS = 5.0
_LOOK_SECONDS = 1.0


class SteppedDown(Exception):
    """Somebody else has founded a newer generation."""


@dataclass(frozen=True)
class Knowledge:
    """What a successor must know. Every keeper keeps the last that it was told."""

    world: World | None = None
    tally: Tally = field(default_factory=Tally)
    run: str | None = None
    asked: str | None = None
    newest: str | None = None


Report = Callable[[Event, str | None], None]
Flush = Callable[["Lead"], str]


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
        flush: Flush,
    ) -> None:
        self.me = me
        self.settings = settings
        self.meeting = meeting
        self.clock = clock
        self.run_folder = settings.run or knows.run
        self._knows = knows
        self._report = report
        self._newest_checkpoint = newest_checkpoint
        self._flush = flush
        self.asked = knows.asked
        self._tally = knows.tally
        # The newest checkpoint that any node was known to have: what progress is measured by.
        self._newest = knows.newest
        self._newest_before = knows.newest
        # A leader that this keeper has lost is not waited for: should it live, only one of us can found the
        # next generation, and the other will see that.
        self.lost: set[int] = {*knows.world.lost, *(gone & knows.world.keepers)} if knows.world else set()
        self.roster = Roster(
            clock,
            beat_seconds=settings.beat_seconds,
            silence_seconds=settings.silence_seconds,
            refuse=self._refuse,
        )
        self._world = knows.world
        # Whatever was founded before this leader began is not against it.
        self._generation = knows.world.generation if knows.world else meeting.newest_generation()
        self._gathering = Gathering(settings, meeting, clock)
        self._thread = threading.Thread(target=self._run, name="holdfast-lead", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _refuse(self, hello: dict[str, Any]) -> dict[str, Any] | None:
        if hello.get("number") in self.lost:
            return {"answer": "lost"}
        theirs, ours = hello.get("must_agree"), self.settings.must_agree
        if theirs != ours:
            why = f"it was started with {theirs} and {self.me} with {ours}"
            return {"answer": "refused", "why": why}
        return None

    def _run(self) -> None:
        try:
            code, why = self._lead()
        except SteppedDown:
            self.roster.tell_all({"say": "step down"})
        except HoldfastError as error:
            self._dismiss(exit_codes.STOPPED_UNSAVED, f"the leading keeper failed: {error}")
        except BaseException as error:
            self._dismiss(exit_codes.STOPPED_UNSAVED, f"the leading keeper failed: {error!r}")
            raise
        else:
            self._dismiss(code, why)

    def _lead(self) -> tuple[int, str]:
        while True:
            try:
                cards = self._gathering.gather(self)
            except TooFewNodes as few:
                return self._leave(exit_codes.TOO_FEW_NODES, str(few))
            if self.asked is not None:
                why = f"{self.asked} before the next start; run the same command to continue"
                return self._leave(exit_codes.PLEASE_RUN_AGAIN, why)
            world = self._found(cards)
            started = self.clock.monotonic()
            end = self._attempt(world)
            move = self._judge(end, self.clock.monotonic() - started)
            if move.exit_code is not None:
                return self._leave(move.exit_code, move.why)
            self._wait_until(lambda: self.asked is not None, move.pause)

    # ---- one generation

    @property
    def world(self) -> World | None:
        """The generation that was last, in this job."""
        return self._world

    def _found(self, cards: list[Card]) -> World:
        earlier = self._world or self.meeting.newest_world()
        seats = take_seats(earlier.seats if earlier else (), cards, self.settings.nodes)
        world = World(
            generation=self.meeting.newest_generation() + 1,
            leader=self.me.number,
            procs_per_node=self.settings.procs_per_node,
            seats=seats,
            lost=tuple(sorted(self.lost)),
        )
        if not self.meeting.found(world):
            raise SteppedDown
        self._say_changes(world)
        self._world, self._generation = world, world.generation
        return world

    def _attempt(self, world: World) -> AttemptEnd:
        self._newest_before = self._look_newest()
        self._publish(world)
        port = self._ask_port(world)
        if isinstance(port, AttemptEnd):
            return port
        attempt = self._tally.attempts
        for seat in world.seats:
            start = {"say": "start", "generation": world.generation, "port": port, "attempt": attempt}
            self.roster.tell(seat.keeper, start)
        self.tell(AttemptStarted(time=self.clock.wall(), attempt=attempt, pid=0))
        end = self._watch(world)
        if end.cause != "finished":
            self._stop(world)
            gone = world.keepers & self.lost
            if gone and end.cause != "node lost" and not end.planned:
                # The others failed because this one was gone, and only were quicker to say so.
                end = replace(end, cause="node lost", detail=f"{_nodes(world, gone)} lost; {end.detail}")
        return end

    def _ask_port(self, world: World) -> int | AttemptEnd:
        self.roster.tell(world.seats[0].keeper, {"say": "port", "generation": world.generation})
        end = self.clock.monotonic() + PORT_SECONDS
        while (left := end - self.clock.monotonic()) > 0:
            news = self.hear(left)
            if isinstance(news, Gone) and news.card.number in world.keepers:
                return _node_lost(world, news)
            if isinstance(news, Said) and news.message.get("say") == "port":
                return int(news.message["port"])
        self.lost.add(world.seats[0].keeper)
        return AttemptEnd("node lost", f"{world.seats[0].node} did not answer")

    def _watch(self, world: World) -> AttemptEnd:
        """Until all workers have ended, or the first sign that they cannot all finish."""
        ended: dict[tuple[int, int], AttemptEnd] = {}
        stopped: AttemptEnd | None = None
        until: float | None = None
        while len(ended) < world.size:
            news = self.hear(_LOOK_SECONDS)
            self.require_newest()
            if until is not None and self.clock.monotonic() >= until and stopped is not None:
                return stopped
            if isinstance(news, Gone) and news.card.number in world.keepers:
                return _node_lost(world, news)
            if not isinstance(news, Said) or news.message.get("say") != "ended":
                continue
            if news.message.get("generation") != world.generation:
                continue
            end = end_from_json(news.message["end"])
            ended[news.card.number, int(news.message["local_rank"])] = end
            if not end.planned:
                where = next(seat.node for seat in world.seats if seat.keeper == news.card.number)
                return replace(end, detail=f"{where}, local rank {news.message['local_rank']}: {end.detail}")
            if end.cause != "finished" and stopped is None:
                # The others stop at the same step, and may be saving it.
                stopped, until = end, self.clock.monotonic() + self.settings.grace
        return stopped or AttemptEnd("finished", "exit code 0 everywhere")

    def _stop(self, world: World) -> None:
        waiting = set(world.keepers) & set(self.roster.members)
        stop = {"say": "stop", "generation": world.generation, "grace": self.settings.kill_grace}
        for number in waiting:
            self.roster.tell(number, stop)
        end = self.clock.monotonic() + self.settings.kill_grace + STOPPED_SECONDS
        while waiting and (left := end - self.clock.monotonic()) > 0:
            news = self.hear(left)
            if isinstance(news, Gone):
                waiting.discard(news.card.number)
            if isinstance(news, Said) and news.message.get("say") == "stopped":
                waiting.discard(news.card.number)
                self._newest = max(self._newest or "", news.message.get("newest") or "") or None
        # A node that cannot end its workers is no node any more.
        self.lost |= waiting

    def _judge(self, end: AttemptEnd, seconds: float) -> Move:
        after = self._look_newest()
        progressed = got_on(self._newest_before, after, visible=self.run_folder is not None, seconds=seconds)
        # A lost node is not the program's fault; how often that can happen, the number of nodes limits.
        lost = end.cause == "node lost"
        attempt, self._tally = self._tally.attempts, self._tally.after(end, progressed=progressed or lost)
        deadline = self.settings.deadline
        left = None if deadline is None else deadline.at - self.clock.wall()
        move = next_move(
            end, self._tally, self.settings.rules, seconds_left=left, stopping=self.asked is not None
        )
        if lost and move.exit_code is None:
            move = Move("starting again without it")
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
        if code != exit_codes.FINISHED and self.run_folder is not None:
            why = f"{why}; {self._flush(self)}"
        self.tell(
            SupervisorEnded(time=self.clock.wall(), attempts=self._tally.attempts, exit_code=code, why=why)
        )
        return code, why

    def _dismiss(self, code: int, why: str) -> None:
        self.roster.tell_all({"say": "exit", "code": code, "why": why[:2000]})
        self._wait_until(lambda: not self.roster.members, FAREWELL_SECONDS)
        for number in self.lost:
            self.meeting.unregister(number)

    # ---- small things

    def hear(self, seconds: float) -> News | None:
        """What comes next; what concerns the leader always, it has noted already."""
        news = self.roster.next(seconds)
        if isinstance(news, Gone) and self._world is not None and news.card.number in self._world.keepers:
            self.lost.add(news.card.number)
        if isinstance(news, Said):
            self.run_folder = self.run_folder or news.message.get("run")
            if news.message.get("say") == "asked":
                self.asked = self.asked or str(news.message["why"])
        return news

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

    def _publish(self, world: World) -> None:
        self.roster.tell_all(
            {
                "say": "world", "world": world.to_json(), "tally": asdict(self._tally),
                "run": self.run_folder, "newest": self._newest, "asked": self.asked,
            }
        )  # fmt: skip

    def _look_newest(self) -> str | None:
        shared = self._newest_checkpoint(self.run_folder) if self.run_folder is not None else None
        self._newest = max(self._newest or "", shared or "") or None
        return self._newest

    def _wait_until(self, done: Callable[[], bool], seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while not done() and (left := end - self.clock.monotonic()) > 0:
            self.hear(left)

    def _say_changes(self, world: World) -> None:
        before = {seat.node: seat for seat in self._world.seats} if self._world else {}
        for seat in world.seats:
            old = before.get(seat.node)
            if old is not None and old.keeper != seat.keeper:
                self.warn(
                    f"{seat.node} is {seat.host} ({seat.address}) now, in place of {old.host} ({old.address})"
                )
        for node in sorted(set(before) - {seat.node for seat in world.seats}):
            self.warn(f"{node} has no replacement; going on with {len(world.seats)} nodes")


def _node_lost(world: World, gone: Gone) -> AttemptEnd:
    return AttemptEnd("node lost", f"{_nodes(world, {gone.card.number})}: {gone.why}")


def _nodes(world: World, keepers: set[int] | frozenset[int]) -> str:
    return ", ".join(f"{s.node} on {s.host} ({s.address})" for s in world.seats if s.keeper in keepers)
