"""After trainers died: what lies in memory or on a node's own disk, and nowhere else, is made to last.

For the keeper, which outlives its trainers, and for anyone at the command line. Needs no torch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, RunInUse
from holdfast.stores.owner import is_alive, this_process
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.copying import Copier
from holdfast.tiers.ladder import Ladder
from holdfast.tiers.memory_folder import read_owner
from holdfast.tiers.named_tier import NamedTier
from holdfast.tiers.opening import readable_tiers


@dataclass(frozen=True)
class Scavenged:
    """What was made to last, newest first, and what could not be, with the reason."""

    tier: str
    saved: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()


def scavenge(
    run: str | os.PathLike[str],
    *,
    more: Sequence[NamedTier] = (),
    shm: str | None = None,
    cancel: threading.Event | None = None,
    clock: Clock | None = None,
) -> Scavenged:
    """Commit everything newer than the lasting tier's newest to that tier: same name, same manifest.

    RunInUse while the trainer lives: it looks after its checkpoints itself. A writer epoch is claimed, so a
    trainer that only seemed dead cannot commit any more. `more` are stores of other nodes.
    """
    home = os.fspath(run)
    with CheckpointStore(home, clock=clock) as seat:
        # Before anything is looked at: from here on nothing new appears.
        epoch = seat.claim()
        tiers = readable_tiers(home, more=more, shm=shm)
        for tier in tiers:
            _refuse_living(tier)
        lasting = next(tier for tier in tiers if tier.must_answer)
        here = max(lasting.store.names(), default="")
        near = [tier for tier in tiers if not tier.must_answer]
        newer = sorted((n for n in Ladder(near).names() if n > here), reverse=True) if near else []
        if not newer:
            return Scavenged(lasting.name)
        return _commit(newer, near, lasting, seat, epoch, cancel)


def _commit(
    newer: list[str],
    near: list[NamedTier],
    lasting: NamedTier,
    seat: CheckpointStore,
    epoch: int,
    cancel: threading.Event | None,
) -> Scavenged:
    store, claimed = lasting.store, None
    if store.where == seat.where:
        store = seat
    else:
        claimed = store
        claimed.claim(at_least=epoch)
    saved, failed = [], []
    try:
        copier = Copier(Ladder(near), store, cancel=cancel)
        # The newest first: whoever called us may not have the time for more.
        for name in newer:
            try:
                copier.copy(name)
                copier.publish(name)
                saved.append(name)
            except HoldfastError as error:
                failed.append((name, error.message))
    finally:
        if claimed is not None:
            claimed.release()
    return Scavenged(lasting.name, tuple(saved), tuple(failed))


def _refuse_living(tier: NamedTier) -> None:
    """A memory tier says so in its folder. Other places have no such record; the run's own is claimed."""
    owner, _ = read_owner(tier.store.where)
    if owner is not None and owner.pid != os.getpid() and is_alive(owner, this_process("")):
        raise RunInUse(
            f"{tier.store.where} is being written by {owner}", hint="wait for it to end, or stop it"
        )
