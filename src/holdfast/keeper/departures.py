"""Nodes whose machines will be taken away, as their providers announced: they go once the run has saved.

With enough others at hand it is a planned change, and no failure. Without, the job ends as by any other stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.jobs import exit_codes
from holdfast.jobs.attempts import AttemptEnd
from holdfast.keeper.flush import flush
from holdfast.keeper.world import Card, World

if TYPE_CHECKING:
    from holdfast.keeper.lead import Lead

PREEMPTION: Final = "preemption"
# From the workers' own look at the notice until their keeper has seen it: one every 5 s, which may take 2.
NOTICE_SECONDS = 8.0
FAREWELL_SECONDS = 5.0


class HandedOver(Exception):
    """The leader's own machine goes. Another one leads from here on."""


class Departures:
    def __init__(self, lead: Lead) -> None:
        self._lead = lead
        # By the number of the keeper: what was announced.
        self.announced: dict[int, str] = {}

    def announce(self, keeper: int, why: str) -> None:
        self.announced.setdefault(keeper, why)
        # Before the first generation others are still coming.
        if self._lead.world is not None and len(self.staying()) < self._lead.settings.fewest:
            self._lead.asked = self._lead.asked or PREEMPTION

    def staying(self) -> dict[int, Card]:
        return {n: card for n, card in self._lead.roster.members.items() if n not in self.announced}

    def concern(self, world: World) -> bool:
        return not world.keepers.isdisjoint(self.announced)

    def explain(self, end: AttemptEnd, world: World) -> AttemptEnd | None:
        """That a generation has stopped so that nodes can go; None if it ended for another reason."""
        lead = self._lead
        if end.cause not in (PREEMPTION, "stopped"):
            return None
        if end.cause == PREEMPTION and len(self.staying()) > lead.settings.fewest:
            # Workers ask the provider too, and all stop with one reason; whose machine, its keeper will say.
            lead.hear_until(lambda: self.concern(world) or lead.asked is not None, NOTICE_SECONDS)
        if lead.asked is not None or not self.concern(world):
            return None
        going = [seat for seat in world.seats if seat.keeper in self.announced]
        said = "; ".join(f"{s.node} on {s.host} ({s.address}): {self.announced[s.keeper]}" for s in going)
        return AttemptEnd(PREEMPTION, said, end.returncode)

    def let_go(self, *, is_protected: bool) -> None:
        """Between two generations. HandedOver if the leader itself goes. `is_protected`: one node can go, and
        the others still put the newest checkpoint together."""
        lead, me = self._lead, self._lead.me.number
        others = set(self.announced) & set(lead.roster.members) - {me}
        if lead.asked is not None or (not others and me not in self.announced):
            # If all must stop, they also save together.
            return
        alone = len(others) + (me in self.announced) == 1
        if not (is_protected and alone) and (said := flush(lead, give_back=False)):
            lead.warn(said)
        for number in others:
            lead.roster.tell(number, self.farewell(number))
        lead.hear_until(lambda: others.isdisjoint(lead.roster.members), FAREWELL_SECONDS)
        lead.lost |= others
        if me in self.announced:
            raise HandedOver

    def farewell(self, keeper: int) -> dict[str, object]:
        why = f"{self.announced[keeper]}; the others go on without this node"
        return {"say": "exit", "code": exit_codes.PLEASE_RUN_AGAIN, "why": why}
