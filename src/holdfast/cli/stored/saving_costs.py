"""What a run has measured about saving, from its journal and its checkpoint: facts, no advice."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.checkpoints.find import Found
from holdfast.cli.render import plural
from holdfast.contents.state import read_state
from holdfast.events import (
    Event,
    Progress,
    Restored,
    RunStarted,
    SaveCommitted,
    SaveDecided,
    SaveFailed,
    SnapshotTaken,
)
from holdfast.policy.belief import belief_from
from holdfast.policy.failures import FailureHistory
from holdfast.stores.journal import read_events
from holdfast.stores.store import CheckpointStore
from holdfast.units import format_bytes, format_seconds

_Kind = TypeVar("_Kind", bound=Event)


@dataclass(frozen=True, kw_only=True)
class SavingCosts:
    """Seconds and bytes; None where the journal or the checkpoint says nothing. Costs are medians."""

    # As the user wrote them, and what the policy last said about itself.
    settings: str | None
    explanation: str | None
    saves: int
    saves_failed: int
    last_reason: str | None
    gap_seconds: float | None
    gap_steps: float | None
    stall_seconds: float | None
    persist_seconds: float | None
    bytes: int | None
    step_seconds: float | None
    cost_seconds: float | None
    restore_seconds: float | None
    stall_share: float | None
    starts: int
    failures: int
    # Steps that had to be made again after failures, as far as it is known.
    steps_lost: int
    mtbf_seconds: float
    expects: str

    def lines(self) -> list[str]:
        failed = f", {self.saves_failed} failed" if self.saves_failed else ""
        said = [f"settings: {self.settings}"] if self.settings else []
        said += [f"at its last sign of life: {self.explanation}"] if self.explanation else []
        said.append(f"{self.saves} saves in the journal{failed}")
        if self.last_reason:
            said.append(f"last one because: {self.last_reason}")
        if self.gap_seconds is not None and self.gap_steps is not None:
            said.append(f"usually every {format_seconds(self.gap_seconds)} or {self.gap_steps:.0f} steps")
        if self.stall_seconds is not None and self.persist_seconds is not None and self.bytes is not None:
            said.append(
                f"a save stalls training {format_seconds(self.stall_seconds)} and is durable after"
                f" {format_seconds(self.persist_seconds)} more ({format_bytes(self.bytes)})"
            )
        if self.stall_share is not None:
            said.append(f"stall takes {100 * self.stall_share:.2g} % of the time")
        if self.step_seconds is not None:
            cost = f", a save costs {format_seconds(self.cost_seconds)}" if self.cost_seconds else ""
            said.append(f"as the policy sees it: a step takes {format_seconds(self.step_seconds)}{cost}")
        lost = f", {plural(self.steps_lost, 'step')} made again" if self.failures else ""
        said.append(
            f"{plural(self.starts, 'start')}, {self.failures} ended in a failure{lost}; {self.expects}"
        )
        return said


def measure(store: CheckpointStore, found: Found) -> SavingCosts:
    events = read_events(store.where)
    profile = _profile(store, found)
    committed = _of(events, SaveCommitted)
    stall = _median([event.stall_seconds for event in _of(events, SnapshotTaken)])
    decided = _of(events, SaveDecided)
    gap = _median(_gaps([event.time for event in decided]))
    # The journal cannot know whether its last writer still lives; nothing is charged to it as a failure.
    history = FailureHistory.from_events(events, still_running=True)
    belief = belief_from().after(history)
    return SavingCosts(
        settings=next((e.policy for e in reversed(_of(events, RunStarted)) if e.policy), None),
        explanation=next((e.policy for e in reversed(_of(events, Progress)) if e.policy), None),
        saves=len(committed),
        saves_failed=len(_of(events, SaveFailed)),
        last_reason=decided[-1].reason if decided else None,
        gap_seconds=gap,
        gap_steps=_median(_gaps([float(event.step) for event in decided])),
        stall_seconds=stall,
        persist_seconds=_median([event.persist_seconds for event in committed]),
        bytes=committed[-1].bytes if committed else None,
        step_seconds=profile.get("step_seconds"),
        cost_seconds=profile.get("cost_seconds"),
        restore_seconds=profile.get("restore_seconds"),
        stall_share=stall / gap if stall is not None and gap else None,
        starts=len(history.spells),
        failures=history.failures,
        steps_lost=sum(event.steps_lost or 0 for event in _of(events, Restored)),
        mtbf_seconds=1 / belief.mean(),
        expects=belief.words(),
    )


def _of(events: list[Event], kind: type[_Kind]) -> list[_Kind]:
    return [event for event in events if isinstance(event, kind)]


def _gaps(moments: list[float]) -> list[float]:
    # A step back is a resumed run, a jump in time is its absence; the median does not mind either.
    return [after - before for before, after in itertools.pairwise(moments) if after > before]


def _median(numbers: list[float]) -> float | None:
    return statistics.median(numbers) if numbers else None


def _profile(store: CheckpointStore, found: Found) -> dict[str, float]:
    """The policy's own averages, which travel with the checkpoint."""
    values: dict[str, Any] = {
        path[-1].strip("'"): leaf.value
        for path, leaf in read_state(store, found).common.items()
        if path[:3] == ("run", "'policy'", "'profile'")
    }
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
