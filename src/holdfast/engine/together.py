"""A run of several ranks, seen from one of them: when everybody saves, when everybody stops."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, SetupError
from holdfast.policy.observation import Decision
from holdfast.ranks.agreement import Agreed, Agreement
from holdfast.ranks.ballot import Ballot
from holdfast.ranks.team import Team
from holdfast.stores.owner import launch_of
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.lost_home import Known, known_elsewhere
from holdfast.tiers.words import Tier


class Together:
    """Rank 0 decides, everybody follows at the same step. Used by the training thread."""

    def __init__(self, team: Team, clock: Clock, *, limit: float) -> None:
        self.team = team
        self.ballot = Ballot(team, clock, limit=limit)
        self._limit = limit
        self._agreement = Agreement(team, clock, limit=limit)
        self._asked_to_stop = False
        self._agreed: Agreed | None = None

    @property
    def leads(self) -> bool:
        return self.team.leads

    def propose(self, decision: Decision, step: int) -> None:
        """Rank 0: the policy wants a save."""
        self._agreement.propose("save", decision.reason, step, detail={"final": decision.final})

    def ask_to_stop(self, reason: str, exit_code: int) -> None:
        if not self._asked_to_stop:
            self._asked_to_stop = True
            self._agreement.request_stop(reason, exit_code)

    def stop_unheard(self, now: float) -> bool:
        """Whether this rank asked to stop and the others cannot be reached: then it stops on its own."""
        return self._agreement.stop_unheard(now)

    def due(self, step: int, *, is_clean: bool) -> Agreed | None:
        """What everybody does at this boundary. While gradients are being accumulated it waits: every rank
        accumulates alike."""
        found = self._agreement.at(step)
        if found is not None:
            self._agreed = found
        if self._agreed is None or not is_clean:
            return None
        due, self._agreed = self._agreed, None
        return due

    def same_for_all(self, what: str, decision: Decision) -> Decision:
        """Rank 0's decision, for everybody. Every rank asks equally often."""
        mine = json.dumps([decision.save, decision.reason, decision.final]).encode()
        save, reason, final = json.loads(self.team.share(what, mine, self._limit))
        return Decision(save, reason, final=final)

    def close(self, *, in_order: bool = True) -> None:
        """`in_order`: every rank ends now, too. Otherwise rank 0 waits for nobody."""
        is_complete = in_order and not self._agreement.silent
        self._agreement.close()
        self.ballot.close()
        if is_complete or not self.leads:
            self.team.part()
        self.team.close()


def told_by_leader(team: Team, what: str, limit: float, work: Callable[[], Any]) -> Any:
    """Rank 0 does the work; everybody gets its answer, which JSON can hold, or an error."""
    said: dict[str, Any] = {}
    failure: HoldfastError | None = None
    if team.leads:
        try:
            said["answer"] = work()
        except HoldfastError as error:
            failure, said["error"] = error, error.message
    said = json.loads(team.share(what, json.dumps(said).encode(), limit))
    if failure is not None:
        raise failure
    if "error" in said:
        raise SetupError(f"rank 0 cannot open the run: {said['error']}")
    return said["answer"]


def claim_known(
    folder: str, tiers: Sequence[Tier], clock: Clock, team: Team | None, limit: float
) -> CheckpointStore:
    """A folder of this run, claimed: made again as the same run if it was lost and a tier knows it."""
    if team is None:
        known = known_elsewhere(folder, tiers)
    else:
        # Rank 0 looks; what it cannot reach, everybody hears at once.
        known = Known(**told_by_leader(team, "known", limit, lambda: vars(known_elsewhere(folder, tiers))))
    store = CheckpointStore(folder, clock=clock, uuid=known.uuid)
    if team is None:
        store.claim(at_least=known.at_least)
    else:
        claim_together(store, team, limit, at_least=known.at_least)
    return store


def claim_together(
    store: CheckpointStore, team: Team, limit: float, *, what: str = "writer", at_least: int = 1
) -> None:
    """Rank 0 becomes the writer of a folder that all ranks share, the others write for it."""
    launch = launch_of(os.environ)
    epoch = told_by_leader(team, what, limit, lambda: store.claim(at_least=at_least, launch=launch))
    if not team.leads:
        store.join(epoch)
