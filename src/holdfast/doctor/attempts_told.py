"""Why the last attempts of a run ended, what each lost, and what to change. Pure; reads events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.events import AttemptEnded, Event, RunStarted, SaveCommitted

SHOWN = 10
_ADVICE = {
    "out of memory": "ask for more memory (--mem), or use fewer data loader workers or smaller batches",
    "hang": "its stacks are in its output; a lost peer or a dead file system is the usual cause",
    "signal": "somebody ended it: the scheduler's or the kernel's log says who",
    "exit code": "the end of its output says why",
    "node lost": "a spare node (--spares) takes its place at once",
    "do not restart": "what is said there must be changed first",
    "cannot start": "correct the command",
}


@dataclass(frozen=True)
class EndTold:
    """`lost_seconds`: work since the newest save, which was done again; 0 for an end that was planned."""

    ended: float
    lasted: float
    cause: str
    detail: str
    lost_seconds: float
    change: str


def tell_attempts(events: Sequence[Event]) -> list[EndTold]:
    """The last ends, oldest first."""
    told: list[EndTold] = []
    saved: float | None = None
    for event in events:
        if isinstance(event, (SaveCommitted, RunStarted)):
            saved = event.time
        elif isinstance(event, AttemptEnded):
            begun = event.time - event.seconds
            lost = 0.0 if event.planned else max(event.time - max(saved or begun, begun), 0.0)
            change = "" if event.planned else _ADVICE.get(event.cause, "")
            told.append(EndTold(event.time, event.seconds, event.cause, event.detail, lost, change))
    return told[-SHOWN:]
