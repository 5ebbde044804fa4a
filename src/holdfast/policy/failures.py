"""How often this job fails, learned from its own journal. Pure: events in, a rate out.

Every second a node is up is evidence, also the seconds of a spell that still runs or that ended as planned.
The posterior mean of the *rate* is what belongs into the interval, because expected loss is linear in it; the
mean of the MTBF would be too hopeful.
"""

from __future__ import annotations

import math
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

HOUR = 3600.0
DAY = 24 * HOUR
# One failure per node in 2,000 h, on the pessimistic side of what is published (3.5 to 24 per 1000
# node-days), because under-estimating the rate is the dear side.
PRIOR_NODE_SECONDS_PER_FAILURE = 2000 * HOUR
# Preemptible instances; published traces range from one preemption in 0.7 h to one in 17 h.
SPOT_NODE_SECONDS_PER_FAILURE = 4 * HOUR
# The prior counts as half a failure. Against a whole one, over 30 failures: with a prior five times too
# hopeful the extra overhead falls from 3.3 % to 2.4 %, with a right one it rises from 0.9 % to 1.1 %.
PRIOR_WEIGHT = 0.5
# Failure rates drift by factors of ten within months; a week forgets fast enough on the public traces.
HALF_LIFE = 7 * DAY
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


@dataclass(frozen=True)
class FailureRate:
    """A Gamma belief about the failure rate of the whole job, per second.

    `failures` of them were seen in `exposure` seconds of the job being up, both faded with the half-life.
    `certain` means that the rate was given as a fact and is not learned.
    """

    prior_mtbf: float
    prior_weight: float = PRIOR_WEIGHT
    failures: float = 0.0
    exposure: float = 0.0
    seen: int = 0
    certain: bool = False
    half_life: float = HALF_LIFE

    def mean(self, running_for: float = 0.0) -> float:
        """Failures per second, given that the present spell has lasted `running_for` seconds so far."""
        if self.certain:
            return 1 / self.prior_mtbf
        exposure = self.exposure + running_for
        return (self.prior_weight + self.failures) / (self.prior_weight * self.prior_mtbf + exposure)

    def after_spell(self, seconds: float, *, failed: bool) -> FailureRate:
        """The belief after one more spell."""
        fade = 0.5 ** (seconds / self.half_life)
        # A second of the spell itself fades by the time from then until its end.
        lived = -self.half_life / _LN2 * math.expm1(-_LN2 * seconds / self.half_life)
        return FailureRate(
            prior_mtbf=self.prior_mtbf,
            prior_weight=self.prior_weight,
            failures=self.failures * fade + failed,
            exposure=self.exposure * fade + lived,
            seen=self.seen + failed,
            certain=self.certain,
            half_life=self.half_life,
        )

    def after(self, history: FailureHistory) -> FailureRate:
        """The belief after everything in the journal. Time when the job was down is no evidence."""
        rate = self
        for spell in history.spells:
            if spell.ended != "running":
                rate = rate.after_spell(spell.end - spell.start, failed=spell.ended == "failure")
        return rate


_LN2 = math.log(2)


def prior_rate(nodes: int = 1, *, spot: bool = False) -> FailureRate:
    """What to believe of a job on `nodes` nodes before anything is known."""
    per_node = SPOT_NODE_SECONDS_PER_FAILURE if spot else PRIOR_NODE_SECONDS_PER_FAILURE
    return FailureRate(prior_mtbf=per_node / nodes)
