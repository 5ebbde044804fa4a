"""The checkpoints of a run, for people and programs that only want to look. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoints.find import Found, committed
from holdfast.errors import StoreNotFound
from holdfast.stores.store import CheckpointStore


@dataclass(frozen=True)
class Checkpoint:
    """One committed checkpoint. `problem` says why it cannot be used, or is None.

    `files` maps what is inside ("model.safetensors", ...) to where it lies: the weights file can be opened
    with the safetensors library as it is.
    """

    name: str
    step: int
    epoch: int | None
    created: str | None
    bytes: int
    reason: str
    metrics: Mapping[str, float]
    files: Mapping[str, Path]
    problem: str | None


def checkpoints(path: str | os.PathLike[str]) -> list[Checkpoint]:
    """Every committed checkpoint of the run at `path`, newest first."""
    if not Path(path).is_dir():
        raise StoreNotFound(f"there is no folder {os.fspath(path)}", hint="is this the path of a run?")
    store = CheckpointStore(path)
    return [_describe(found, Path(store.where)) for found in committed(store)]


def _describe(found: Found, root: Path) -> Checkpoint:
    name, manifest = str(found.name), found.manifest
    if manifest is None:
        return Checkpoint(name, found.step, None, None, 0, "", {}, {}, found.problem)
    epoch: Any = manifest.progress.get("epoch")
    return Checkpoint(
        name=name,
        step=found.step,
        epoch=epoch if isinstance(epoch, int) else None,
        created=manifest.created,
        bytes=manifest.total_bytes,
        reason=manifest.reason,
        metrics=dict(manifest.metrics),
        files={record.name: root / "ckpt" / name / record.name for record in manifest.files},
        problem=None,
    )
