"""Which checkpoints a store holds, newest first, the unreadable ones included with the reason why."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoints.proof import is_doubtful
from holdfast.errors import CorruptCheckpoint, HoldfastError, NewerFormat, StoreError
from holdfast.format.manifest import Manifest, Parent, parse_manifest
from holdfast.format.names import CheckpointName, parse_checkpoint_name
from holdfast.format.sealed import seal_of
from holdfast.stores.base import Store


@dataclass(frozen=True)
class Found:
    """A place that claims to be a checkpoint. Exactly one of `manifest` and `problem` is set.

    `error` is what reading the manifest ended with: not every one proves that it is damaged."""

    name: CheckpointName
    manifest: Manifest | None
    sha256: str | None = None
    problem: str | None = None
    error: HoldfastError | None = None

    @property
    def step(self) -> int:
        return self.name.step

    @property
    def as_parent(self) -> Parent | None:
        return Parent(str(self.name), self.sha256) if self.sha256 else None


def committed(store: Store) -> list[Found]:
    """Every committed checkpoint, newest first by (writer epoch, step). Reads manifests, no data."""
    names = (parse_checkpoint_name(name) for name in store.names())
    return [look(store, name) for name in sorted((n for n in names if n), reverse=True)]


def look(store: Store, name: CheckpointName) -> Found:
    """One checkpoint by name: what its manifest says, or why it cannot be read."""
    try:
        data = store.manifest(str(name))
        manifest = parse_manifest(data)
    except (CorruptCheckpoint, StoreError, NewerFormat) as error:
        return Found(name, None, problem=error.message, error=error)
    if manifest.name != name:
        return Found(name, None, problem=f"its manifest belongs to {manifest.name}")
    return Found(name, manifest, seal_of(data))


def look_again(store: Store, found: Found) -> Found:
    """The same, or where its manifest could not be read and may be whole: a new look."""
    return look(store, found.name) if is_doubtful(found.error) else found
