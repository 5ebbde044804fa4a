"""Costs and failures of a real run, from its journal, to plan with measured numbers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, median

from holdfast.errors import SetupError
from holdfast.events import Event, Progress, Restored, RunStarted, SaveCommitted, SnapshotTaken
from holdfast.policy.failures import FailureHistory
from holdfast.stores.journal import read_events


@dataclass(frozen=True)
class RunCosts:
    """Medians over the run; the first save of each process is left out, because it allocates."""

    saves: int
    stall: float
    persist: float
    state_bytes: float
    step: float | None
    restore: float | None
    failures: int
    up_seconds: float

    @property
    def mtbf(self) -> float | None:
        """Mean seconds between failures, if any was seen."""
        return self.up_seconds / self.failures if self.failures else None


def costs_in(events: Iterable[Event]) -> RunCosts:
    stalls: list[float] = []
    persists: list[float] = []
    sizes: list[float] = []
    steps: list[float] = []
    restores: list[float] = []
    everything = list(events)
    cold = True
    for event in everything:
        if isinstance(event, RunStarted):
            cold = True
        elif isinstance(event, SnapshotTaken):
            if not cold:
                stalls.append(event.stall_seconds)
        elif isinstance(event, SaveCommitted):
            if not cold:
                persists.append(event.persist_seconds)
            sizes.append(event.bytes)
            cold = False
        elif isinstance(event, Progress):
            steps.append(event.step_seconds)
        elif isinstance(event, Restored):
            restores.append(event.seconds)
    if not sizes:
        raise SetupError(
            "the journal holds no committed save to take costs from", hint="let the run save first"
        )
    if not persists:  # a single save: cold, but all there is
        persists = [e.persist_seconds for e in everything if isinstance(e, SaveCommitted)]
        stalls = [e.stall_seconds for e in everything if isinstance(e, SnapshotTaken)]
    history = FailureHistory.from_events(everything, still_running=True)
    return RunCosts(
        saves=len(sizes),
        stall=fmean(stalls) if stalls else 0.0,
        persist=median(persists),
        state_bytes=sizes[-1],
        step=median(steps) if steps else None,
        restore=median(restores) if restores else None,
        failures=history.failures,
        up_seconds=sum(spell.end - spell.start for spell in history.spells),
    )


def read_run_costs(run: str | os.PathLike[str]) -> RunCosts:
    """The measured costs of the run in this folder."""
    events = read_events(run)
    if not events:
        raise SetupError(
            f"{os.fspath(run)} holds no journal of a run", hint="give the folder of a holdfast run"
        )
    return costs_in(events)
