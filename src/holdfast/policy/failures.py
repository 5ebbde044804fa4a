"""When this job was up and how each spell ended, read from its own journal. Pure: events in, spells out.

Every second that the job is up is evidence, also in a spell that still runs or that ended as planned.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from holdfast.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointRejected,
    Event,
    Restored,
    RunEnded,
    RunStarted,
)

# Said by the process that comes next, before it says that it has started. As signs of life of the one before
# they would count the time in between, a restart or a weekend, as time survived.
_SAID_BY_THE_NEXT = (AttemptStarted, CheckpointRejected, Restored)


@dataclass(frozen=True)
class Spell:
    """One stretch of the run being up. Wall-clock seconds; only differences matter."""

    start: float
    end: float
    ended: Literal["failure", "planned", "running"]


@dataclass(frozen=True)
class FailureHistory:
    """What the journal says, as of its last event."""

    spells: tuple[Spell, ...] = ()

    @staticmethod
    def from_events(events: Iterable[Event], *, still_running: bool = False) -> FailureHistory:
        """Read the spells out of a run's journal.

        A spell that began and has no end before the next one begins was a failure; its last sign of life is
        taken as its end. `still_running` says that the last spell belongs to a living process; otherwise the
        process that asks is the one that comes after the failure.
        """
        spells: list[Spell] = []
        start: float | None = None
        last = 0.0
        for event in events:
            if isinstance(event, RunStarted):
                if start is not None:
                    spells.append(Spell(start, max(start, last), "failure"))
                start = event.time
            elif isinstance(event, RunEnded) and start is not None:
                planned = event.how in ("finished", "stopped")
                spells.append(Spell(start, max(start, event.time), "planned" if planned else "failure"))
                start = None
            elif isinstance(event, AttemptEnded) and start is not None:
                # The supervisor saw the process end that could not say so itself.
                spells.append(Spell(start, max(start, event.time), "planned" if event.planned else "failure"))
                start = None
            if not isinstance(event, _SAID_BY_THE_NEXT):
                last = event.time
        if start is not None:
            spells.append(Spell(start, max(start, last), "running" if still_running else "failure"))
        return FailureHistory(tuple(spells))

    @property
    def failures(self) -> int:
        return sum(spell.ended == "failure" for spell in self.spells)
