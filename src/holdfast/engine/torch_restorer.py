"""The restore flow: newest whole checkpoint, every byte verified, then all objects or none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.capture.torch_inflate import inflate_image
from holdfast.capture.torch_live import has_shards
from holdfast.capture.torch_registry import Tracked, check_all, restore_all
from holdfast.capture.torch_rng import begin_own_streams
from holdfast.checkpoints.find import Found, committed
from holdfast.checkpoints.read import Loaded, load_surely, newest_loadable, read_files, require_manifest
from holdfast.clock import Clock
from holdfast.engine.load_together import Mending, load_together
from holdfast.engine.torch_sharded_load import Sharded, load_sharded
from holdfast.errors import CorruptCheckpoint, RestoreError
from holdfast.ranks.team import Team
from holdfast.staging.first_touch import memory_to_keep
from holdfast.stores.base import PAGE, Store

log = logging.getLogger("holdfast")


@dataclass(frozen=True)
class Resumed:
    """What was restored. `rejected` names newer checkpoints that were damaged, and why; `tier` is where most
    of it came from, `bytes_by_tier` what all ranks together read from each. `steps_lost` must be
    taken again: since the last sign of life of the process before, which is its last step unless the machine
    was lost."""

    step: int
    epoch: int
    name: str
    seconds: float
    bytes: int
    tier: str
    steps_lost: int | None = None
    rejected: tuple[str, ...] = field(default=())
    bytes_by_tier: Mapping[str, int] = field(default_factory=dict)


def room_for_image(size: int) -> memoryview:
    """Memory for an image whose views become live tensors."""
    return memory_to_keep(-(-size // PAGE) * PAGE).view[:size]


def say_rejected(found: Found, why: str) -> None:
    log.warning("holdfast: passing over checkpoint %s: %s", found.name, why)


def choose_step(store: Store, step: int | None) -> Found | None:
    """The newest checkpoint of the given step; None where none is asked for."""
    if step is None:
        return None
    everything = committed(store)
    for found in everything:
        if found.step == step:
            return found
    steps = ", ".join(str(s) for s in sorted({f.step for f in everything})) or "none"
    raise RestoreError(f"no checkpoint of step {step} in {store.where}", hint=f"there are: {steps}")


def load_states(store: Store, found: Found, tracked: Sequence[Tracked], rank: int, world: int) -> Sharded:
    """Everything the tracked objects need of one checkpoint, verified; nothing applied."""
    manifest = require_manifest(found)
    if manifest.world > 1 or world > 1 or has_shards(tracked):
        return load_sharded(store, found, tracked, rank, world)
    # One process then and now: the images are read whole, and what is restored are views of them.
    loaded = Loaded(found, read_files(store, found, None, room_for_image))
    return Sharded(found, inflate_all(loaded), manifest.total_bytes)


def inflate_all(loaded: Loaded) -> dict[str, Any]:
    """The states of every tracked object in the checkpoint."""
    states: dict[str, Any] = {}
    for name, image in loaded.files.items():
        for key, state in inflate_image(image, loaded.manifest.values).items():
            if key in states:
                raise CorruptCheckpoint(
                    f"{key!r} occurs in two files of {loaded.found.name}, one of them {name}"
                )
            states[key] = state
    return states


def restore_newest(
    store: Store,
    tracked: Sequence[Tracked],
    clock: Clock,
    *,
    step: int | None = None,
    on_reject: Callable[[Found, str], None] | None = None,
    team: Team | None = None,
    limit: float = 600.0,
    mending: Mending | None = None,
    place: tuple[int, int] = (0, 1),
    unwanted: str | None = None,
) -> tuple[Resumed, Found] | None:
    """Restore in place. None where the store holds no checkpoint at all.

    Checkpoints with the tag `unwanted` are passed over.

    With a team, every rank restores the same checkpoint: the newest that all of them can read. Without one,
    `place` says which rank of how many this is.
    """
    started = clock.monotonic()
    rejected: list[str] = []

    def reject(found: Found, why: str) -> None:
        rejected.append(f"{found.name}: {why}")
        say_rejected(found, why)
        if on_reject is not None:
            on_reject(found, why)

    def load(found: Found) -> Sharded:
        _refuse(found, unwanted)
        return load_states(store, found, tracked, *place)

    def prepare(found: Found) -> Sharded:
        assert team is not None
        _refuse(found, unwanted)
        return _prepared(store, found, tracked, team)

    chosen = choose_step(store, step)
    if team is not None:
        loaded = load_together(store, team, limit, prepare, reject, mending)
    elif chosen is not None:
        loaded = load_surely(store, chosen, load)
    else:
        loaded = newest_loadable(store, load, reject=reject)
    if loaded is None:
        return None
    for one in rejected:
        log.warning("holdfast: going on from %s instead of %s", loaded.found.name, one.partition(":")[0])
    restore_all(tracked, loaded.states)
    manifest = loaded.manifest
    if team is not None and team.rank >= manifest.world:
        begin_own_streams(f"{manifest.name} rank {team.rank}")
    resumed = Resumed(
        step=manifest.step,
        epoch=int(manifest.progress.get("epoch", 0)),
        name=str(loaded.found.name),
        seconds=clock.monotonic() - started,
        bytes=loaded.bytes_read,
        tier=store.where,
        rejected=tuple(rejected),
    )
    return resumed, loaded.found


def _refuse(found: Found, unwanted: str | None) -> None:
    if found.manifest is not None and unwanted in found.manifest.tags:
        raise CorruptCheckpoint(f"{found.name} is {unwanted}, and one from before is wanted")


def _prepared(store: Store, found: Found, tracked: Sequence[Tracked], team: Team) -> Sharded:
    """Loaded and known to fit: whatever is wrong must be known on all ranks before one of them applies."""
    loaded = load_states(store, found, tracked, team.rank, team.world)
    check_all(tracked, loaded.states)
    return loaded
