"""Take up a run where it was left: restore, and tell the policy and the journal what that means."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from holdfast.capture.torch_registry import Tracked
from holdfast.checkpoints.find import Found
from holdfast.checkpoints.retention import NOT_FINITE
from holdfast.clock import Clock
from holdfast.engine.last_step import reached_before
from holdfast.engine.run_state import RunState
from holdfast.engine.settings import Settings
from holdfast.engine.tiers_of_run import Tiers
from holdfast.engine.together import Together, told_by_leader
from holdfast.engine.torch_restorer import Resumed, restore_newest
from holdfast.engine.torch_setting import setting_key
from holdfast.errors import NoValidCheckpoint
from holdfast.events import (
    CheckpointRejected,
    Emit,
    Event,
    Progress,
    Restored,
    RunStarted,
    SaveCommitted,
    SnapshotTaken,
)
from holdfast.format.manifest import Parent
from holdfast.policy.debt import DebtPolicy
from holdfast.policy.profile import Profile
from holdfast.stores.store import CheckpointStore


def resume(
    store: CheckpointStore,
    tracked: Sequence[Tracked],
    state: RunState,
    policy: DebtPolicy,
    history: Sequence[Event],
    *,
    settings: Settings,
    clock: Clock,
    emit: Emit,
    together: Together | None,
    tiers: Tiers | None,
) -> tuple[Resumed, Parent | None] | None:
    """What was restored, and what the next checkpoint continues. None where there is nothing to restore."""

    def reject(found: Found, why: str) -> None:
        emit(CheckpointRejected(time=clock.wall(), name=str(found.name), why=why))

    ladder = tiers.ladder() if tiers else None

    def restore(unwanted: str | None) -> tuple[Resumed, Found] | None:
        return restore_newest(
            ladder or store,
            tracked,
            clock,
            on_reject=reject,
            team=together.team if together else None,
            limit=settings.wait_limit_seconds,
            mending=tiers.mending if tiers else None,
            unwanted=unwanted,
        )

    try:
        restored = restore(None if settings.on_nan == "warn" else NOT_FINITE)
    except NoValidCheckpoint:
        if settings.on_nan == "warn":
            raise
        restored = restore(None)  # None from before: then the newest.
    if restored is None:
        return None
    resumed, found = restored
    reached = reached_before(history)
    lost = None if reached is None else max(reached - resumed.step, 0)
    if together is not None:
        # Only rank 0 has read the journal.
        lost = told_by_leader(together.team, "steps lost", settings.wait_limit_seconds, lambda: lost)
    resumed = replace(resumed, steps_lost=lost)
    read: dict[str, int] | None = None
    if tiers and ladder:
        read = tiers.bytes_read(ladder)
        # Of two copies that gave equally much, the nearer one's bytes were damaged; nodes have a part each.
        order = list(read) if tiers.mending else list(reversed(read))
        resumed = replace(resumed, tier=max(order, key=lambda name: read[name]), bytes_by_tier=read)
    learned = dict(state.policy)
    if learned.get("setting") != setting_key(store.where, tracked, resumed.bytes):
        # Measured on another machine, disk or state: forget the costs, keep the training time.
        learned.pop("profile", None)
    profile = learned.get("profile")
    if not isinstance(profile, dict) or profile.get("stall_seconds") is None:
        told = told_costs(history, os.uname().nodename, resumed.bytes)
        if told is not None:
            learned["profile"] = told.to_dict()
            learned.setdefault("version", 1)
    # Judged here, where machine and disk are known; the policy would compare with a name of its own.
    learned["setting"] = policy.settings.setting
    policy.restore_state(learned)
    policy.restored(clock.monotonic(), resumed.step, resumed.seconds)
    emit(
        Restored(
            time=clock.wall(),
            step=resumed.step,
            name=resumed.name,
            seconds=resumed.seconds,
            bytes=resumed.bytes,
            steps_lost=lost,
            tiers=read,
        )
    )
    return resumed, found.as_parent


# ---- What a save costs here, from the journal: for a process whose checkpoint was taken before that was
# known.
#
# A checkpoint carries what was measured before it. One that was the first of its process knows nothing,
# and where every process dies soon after its first save, none would ever know more.

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
