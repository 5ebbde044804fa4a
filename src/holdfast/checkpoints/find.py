"""Which checkpoints a store holds, newest first, the unreadable ones included with the reason why."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import CorruptCheckpoint, StoreError
from holdfast.format.manifest import Manifest, Parent, parse_manifest
from holdfast.format.names import CheckpointName, parse_checkpoint_name
from holdfast.format.sealed import seal_of
from holdfast.stores.base import Store


@dataclass(frozen=True)
class Found:
    """A place that claims to be a checkpoint. Exactly one of `manifest` and `problem` is set."""

    name: CheckpointName
    manifest: Manifest | None
    sha256: str | None = None
    problem: str | None = None

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
    except (CorruptCheckpoint, StoreError) as error:
        return Found(name, None, problem=error.message)
    if manifest.name != name:
        return Found(name, None, problem=f"its manifest belongs to {manifest.name}")
    return Found(name, manifest, seal_of(data))
