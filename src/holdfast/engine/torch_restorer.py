"""The restore flow: newest whole checkpoint, every byte verified, then all objects or none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.capture.torch_inflate import inflate_image
from holdfast.capture.torch_registry import Tracked, restore_all
from holdfast.checkpoints.find import Found, committed
from holdfast.checkpoints.read import Loaded, newest_valid, read_files
from holdfast.clock import Clock
from holdfast.errors import CorruptCheckpoint, RestoreError
from holdfast.staging.slots import anonymous_memory
from holdfast.stores.base import PAGE, Store

log = logging.getLogger("holdfast")


@dataclass(frozen=True)
class Resumed:
    """What was restored. `rejected` names newer checkpoints that were damaged, and why."""

    step: int
    epoch: int
    name: str
    seconds: float
    bytes: int
    tier: str
    steps_lost: int | None = None
    rejected: tuple[str, ...] = field(default=())


def huge_pages(size: int) -> memoryview:
    """Memory for an image whose views become live tensors."""
    return anonymous_memory(-(-size // PAGE) * PAGE, children_need_it=True).view[:size]


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


def load_checkpoint(
    store: Store, step: int | None, reject: Callable[[Found, str], None] | None = None
) -> Loaded | None:
    """The newest whole checkpoint, or that of the given step; verified in full."""
    found = choose_step(store, step)
    if found is None:
        return newest_valid(store, huge_pages, reject=reject)
    return Loaded(found, read_files(store, found, None, huge_pages))


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
) -> tuple[Resumed, Loaded] | None:
    """Restore in place. None where the store holds no checkpoint at all."""
    started = clock.monotonic()
    rejected: list[str] = []

    def reject(found: Found, why: str) -> None:
        rejected.append(f"{found.name}: {why}")
        say_rejected(found, why)
        if on_reject is not None:
            on_reject(found, why)

    loaded = load_checkpoint(store, step, reject)
    if loaded is None:
        return None
    restore_all(tracked, inflate_all(loaded))
    manifest = loaded.manifest
    resumed = Resumed(
        step=manifest.step,
        epoch=int(manifest.progress.get("epoch", 0)),
        name=str(loaded.found.name),
        seconds=clock.monotonic() - started,
        bytes=manifest.total_bytes,
        tier=store.where,
        rejected=tuple(rejected),
    )
    return resumed, loaded
