"""One checkpoint into one store, all or nothing: data, then the manifest that vouches for it.

Returns only when the checkpoint is durable. A save that failed raises; it is never reported as done.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from holdfast.errors import InternalError, SaveError, StoreError
from holdfast.format.manifest import Manifest, Parent
from holdfast.format.names import CheckpointName
from holdfast.format.sealed import seal_of
from holdfast.stores.base import ImageSource, Store

# What manifests and directory entries take beside the images, for the free-space check.
_OVERHEAD_BYTES = 4 << 20
_drafts = itertools.count()


def _next_nonce() -> str:
    """Higher for the later of two: a step can be saved twice (by rhythm, then because the epoch or the loop
    ended), and the later one must be the newer by name.

    The rest is never from a seeded generator: that would touch training's random streams and repeat.
    """
    return f"{next(_drafts) & 0xFFFFFF:06x}{os.urandom(1).hex()}"


@dataclass(frozen=True, kw_only=True)
class CheckpointDraft:
    """Everything a manifest will say, but for the files. `roles` maps file names to what they hold."""

    writer_epoch: int
    step: int
    created: str
    reason: str
    parent: Parent | None = None
    nonce: str = field(default_factory=_next_nonce)
    world: int = 1
    progress: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    contains: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    notes: str = ""
    keep: str | None = None
    roles: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> CheckpointName:
        return CheckpointName(self.writer_epoch, self.step, self.nonce)


@dataclass(frozen=True)
class Committed:
    """A durable checkpoint. `sha256` is the seal of its manifest: what a successor calls its parent."""

    name: CheckpointName
    manifest: Manifest
    sha256: str

    @property
    def as_parent(self) -> Parent:
        return Parent(str(self.name), self.sha256)


def write_checkpoint(store: Store, draft: CheckpointDraft, sources: Sequence[ImageSource]) -> Committed:
    """Write and commit; on any failure remove what was begun and raise what went wrong."""
    if len({source.name for source in sources}) != len(sources):
        raise InternalError(f"two files of one name in the checkpoint of step {draft.step}")
    # First, and without files: a value that cannot be stored should not cost a gigabyte of writing.
    draft_manifest(store, draft).to_bytes()
    name = str(draft.name)
    store.begin(name, sum(source.size for source in sources) + _OVERHEAD_BYTES)
    try:
        records = [store.write(name, source) for source in sources]
        named = [replace(record, role=draft.roles.get(record.name, "")) for record in records]
        manifest = replace(draft_manifest(store, draft), files=tuple(named))
        data = manifest.to_bytes()
        store.publish(name, data)
    except BaseException:
        # Best effort: what cannot be removed now is swept later. Whatever is half there is not committed.
        with contextlib.suppress(StoreError, InternalError):
            store.abandon(name)
        raise
    return Committed(draft.name, manifest, seal_of(data))


def write_copy(store: Store, manifest: Manifest, data: bytes, sources: Sequence[ImageSource]) -> None:
    """The same checkpoint once more, in another store, under the same manifest. All or nothing, as above."""
    name = str(manifest.name)
    expected = {record.name: record for record in manifest.files}
    store.begin(name, sum(source.size for source in sources) + _OVERHEAD_BYTES)
    try:
        for source in sources:
            record = store.write(name, source)
            if replace(record, role=expected[source.name].role) != expected[source.name]:
                raise SaveError(
                    f"{source.name} of {name} changed while it was being saved",
                    hint="another process or thread writes into the staging memory",
                )
        store.publish(name, data)
    except BaseException:
        with contextlib.suppress(StoreError, InternalError):
            store.abandon(name)
        raise


def draft_manifest(store: Store, draft: CheckpointDraft) -> Manifest:
    """What the manifest will say, but for the files."""
    said = {f.name: getattr(draft, f.name) for f in fields(draft) if f.name != "roles"}
    return Manifest(store=store.uuid, files=(), **said)
