"""At which step boundary does everybody save, or stop?

Rank 0 announces a step a little ahead. Every other rank's listener answers for its training thread: in time,
or already past it. Only if all are in time does rank 0 say *go*, and nobody passes that step before the
verdict. Ranks that run far apart call it off at first; the lead then grows until it fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, InternalError
from holdfast.ranks.boundary import Agreed, Boundary
from holdfast.ranks.chair import Chair
from holdfast.ranks.line import SLICE_SECONDS
from holdfast.ranks.member import Member
from holdfast.ranks.team import Team

__all__ = ["Agreed", "Agreement"]


class Agreement:
    """One per rank. Everything that talks does so in a thread; the training thread waits only at an agreed
    step, and there no longer than `limit` and a second."""

    def __init__(self, team: Team, clock: Clock, *, limit: float) -> None:
        self._clock, self._limit = clock, limit
        self._boundary = Boundary()
        self._chair = Chair(team, clock, self._boundary, limit=limit) if team.leads else None
        self._side = self._chair or Member(team, self._boundary)
        self._asked_at: float | None = None
        self._stop_came = False
        self._closed = False

    @property
    def failure(self) -> HoldfastError | None:
        """Why nothing can be agreed on any more: the store is gone, or rank 0 has ended."""
        return self._side.failure

    @property
    def silent(self) -> tuple[int, ...]:
        """Ranks that gave no answer. Until they do, nothing is proposed, so nobody waits for them twice."""
        return tuple(self._side.silent)

    def propose(
        self,
        kind: Literal["save", "stop"],
        reason: str,
        step: int,
        *,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Rank 0, at its boundary `step`: let everybody do so a little later. `detail` is JSON. Never blocks;
        does nothing while something is pending, and may be called off: propose again at a later boundary."""
        if self._chair is None:
            raise InternalError("only rank 0 proposes")
        self._chair.propose(kind, reason, step, detail or {})

    def request_stop(self, reason: str, exit_code: int) -> None:
        """Any rank, any thread but a signal handler: ask everybody to stop. The first one's reason counts; it
        comes back from `at` with the exit code in `detail["exit_code"]`. Never blocks."""
        if self._asked_at is None:
            self._asked_at = self._clock.monotonic()
            self._side.request_stop(reason, exit_code)

    def at(self, step: int) -> Agreed | None:
        """The training thread, at every boundary: what everybody does at this one."""
        if not self._boundary.reach(step):
            return None
        agreed = self._boundary.meet(step, self._limit + SLICE_SECONDS)
        if agreed is not None and agreed.kind == "stop":
            self._stop_came = True
            self._boundary.nudge(False)
        elif agreed is None and self._chair is not None and not self._stop_came:
            self._chair.attend(step)
        return agreed

    def stop_unheard(self, now: float) -> bool:
        """This rank asked for a stop, and no stop of all ranks is to be had: it may stop on its own.

        True when rank 0 did not hear it within `limit`, is gone, or lacks the answer of some rank. A rank 0
        that heard it and is busy with a long step is waited for.
        """
        if self._asked_at is None or self._stop_came or self._boundary.has_agreed("stop"):
            return False
        if self._side.failure is not None:
            return True
        return now - self._asked_at >= self._limit and (not self._side.heard_stop or bool(self._side.silent))

    def close(self) -> None:
        """What is pending is called off; the others hear that rank 0 has ended."""
        if not self._closed:
            self._closed = True
            self._side.close()
