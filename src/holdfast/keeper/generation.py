"""One generation, as its leader sees it: started everywhere, watched, and ended everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard

from holdfast.jobs.attempts import AttemptEnd, Cause
from holdfast.keeper.roster import Gone, News, Said
from holdfast.keeper.words import end_from_json
from holdfast.keeper.world import World

if TYPE_CHECKING:
    from holdfast.keeper.lead import Lead

# Beyond the workers' own grace: until a killed process must be gone, as the supervisor has it, and a margin.
STOPPED_SECONDS = 40.0
PORT_SECONDS = 30.0
_LOOK_SECONDS = 1.0


class Generation:
    """Its workers come from `start` and are gone after `stop`."""

    def __init__(self, lead: Lead, world: World) -> None:
        self._lead = lead
        self._world = world
        # By keeper: the newest checkpoint of its node, if that node has done its share to protect it.
        self._protected: dict[int, str | None] = {}

    def start(self, attempt: int) -> AttemptEnd | None:
        """None if everybody was told to start."""
        port = self._ask_port()
        if isinstance(port, AttemptEnd):
            return port
        if self._lead.asked is not None or self._lead.departures.concern(self._world):
            # A signal that reaches workers before they can listen would kill them.
            cause: Cause = "interrupted" if self._lead.asked == "SIGINT" else "stopped"
            return AttemptEnd(cause, "asked to stop before it began")
        self._tell({"say": "start", "generation": self._world.generation, "port": port, "attempt": attempt})
        return None

    def watch(self) -> AttemptEnd:
        """Until all workers have ended, or the first sign that they cannot all finish."""
        lead, clock = self._lead, self._lead.clock
        ended: dict[tuple[int, int], AttemptEnd] = {}
        stopped: AttemptEnd | None = None
        until = float("inf")
        while len(ended) < self._world.size:
            news = lead.hear(_LOOK_SECONDS)
            lead.require_newest()
            if stopped is not None and clock.monotonic() >= until:
                return stopped
            if (lost := self._lost(news)) is not None:
                return lost
            if not self._is_from_here(news, "ended"):
                continue
            local_rank, end = int(news.message["local_rank"]), end_from_json(news.message["end"])
            ended[news.card.number, local_rank] = end
            if not end.planned:
                node = self._names({news.card.number}, short=True)
                return replace(end, detail=f"{node}, local rank {local_rank}: {end.detail}")
            if end.cause != "finished" and stopped is None:
                # The others stop at the same step, and may be saving it.
                stopped, until = end, clock.monotonic() + lead.settings.grace
        return stopped or AttemptEnd("finished", "exit code 0 everywhere")

    def stop(self, end: AttemptEnd) -> AttemptEnd:
        """Survivors hang in what they do together: they are killed. Returns why it all ended, as far as that
        is known now."""
        lead = self._lead
        waiting = set(self._world.keepers) & set(lead.roster.members)
        grace = lead.settings.kill_grace
        self._tell({"say": "stop", "generation": self._world.generation, "grace": grace})
        limit = lead.clock.monotonic() + grace + STOPPED_SECONDS
        while waiting and (left := limit - lead.clock.monotonic()) > 0:
            news = lead.hear(left)
            if isinstance(news, Gone) or self._is_from_here(news, "stopped"):
                waiting.discard(news.card.number)
            if self._is_from_here(news, "stopped"):
                self._protected[news.card.number] = news.message.get("protected")
        # A node that cannot end its workers is no node any more.
        lead.lost |= waiting
        gone = self._world.keepers & lead.lost
        if gone and end.cause != "node lost" and not end.planned:
            # The others failed because this one was gone, and only were quicker to say so.
            return replace(end, cause="node lost", detail=f"{self._names(gone)} lost; {end.detail}")
        return end

    @property
    def is_protected(self) -> bool:
        """Once it has stopped: whether all nodes have protected the same checkpoint, the newest of each."""
        names = {self._protected.get(keeper) for keeper in self._world.keepers}
        return len(names) == 1 and None not in names

    def _ask_port(self) -> int | AttemptEnd:
        """A free one on the node of rank 0, which only that node can know."""
        first, lead = self._world.seats[0], self._lead
        lead.roster.tell(first.keeper, {"say": "port", "generation": self._world.generation})
        end = lead.clock.monotonic() + PORT_SECONDS
        while (left := end - lead.clock.monotonic()) > 0:
            news = lead.hear(left)
            if (lost := self._lost(news)) is not None:
                return lost
            if self._is_from_here(news, "port"):
                return int(news.message["port"])
        lead.lost.add(first.keeper)
        return AttemptEnd("node lost", f"{first.node} did not answer")

    def _lost(self, news: News | None) -> AttemptEnd | None:
        if not isinstance(news, Gone) or news.card.number not in self._world.keepers:
            return None
        return AttemptEnd("node lost", f"{self._names({news.card.number})}: {news.why}")

    def _is_from_here(self, news: News | None, word: str) -> TypeGuard[Said]:
        return (
            isinstance(news, Said)
            and news.word == word
            and news.message.get("generation") == self._world.generation
        )

    def _tell(self, message: dict[str, object]) -> None:
        for seat in self._world.seats:
            self._lead.roster.tell(seat.keeper, message)

    def _names(self, keepers: set[int] | frozenset[int], *, short: bool = False) -> str:
        seats = [seat for seat in self._world.seats if seat.keeper in keepers]
        return ", ".join(s.node if short else f"{s.node} on {s.host} ({s.address})" for s in seats)
