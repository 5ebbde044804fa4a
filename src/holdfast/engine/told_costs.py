"""What a save costs here, from the journal: for a process whose checkpoint was taken before that was known.

A checkpoint carries what was measured before it. One that was the first of its process knows nothing, and
where every process dies soon after its first save, none would ever know more.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from holdfast.events import Event, Progress, RunStarted, SaveCommitted, SnapshotTaken
from holdfast.policy.profile import Profile

# Of the size of the state: what is further off was another training's.
ALIKE = 0.1


def told_costs(events: Sequence[Event], host: str, state_bytes: int) -> Profile | None:
    """Medians of the saves that this host made of a state of this size; the first of each process only where
    there is no other, because it allocates what the others use."""
    cold: list[tuple[float, float]] = []
    warm: list[tuple[float, float]] = []
    steps: list[float] = []
    here, stall, saved = False, 0.0, 0
    for event in events:
        if isinstance(event, RunStarted):
            here, saved = event.host == host, 0
        elif not here:
            continue
        elif isinstance(event, Progress):
            steps.append(event.step_seconds)
        elif isinstance(event, SnapshotTaken):
            stall = event.stall_seconds
        elif isinstance(event, SaveCommitted) and abs(event.bytes - state_bytes) <= ALIKE * state_bytes:
            (warm if saved else cold).append((stall, event.persist_seconds))
            saved += 1
    known = warm or cold
    if not known:
        return None
    stalled = median(one[0] for one in known)
    return Profile(
        step_seconds=median(steps) if steps else None,
        stall_seconds=stalled,
        cost_seconds=stalled,
        persist_seconds=median(one[1] for one in known),
        state_bytes=state_bytes,
        saves=2 if warm else 1,
    )
