"""One DCP checkpoint and its ranks: what the first tells the others, the manifest made of their answers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import WriteResult

from holdfast.capture.environment import describe_environment
from holdfast.checkpoints.find import Found
from holdfast.checkpoints.verify import verify
from holdfast.checkpoints.write import CheckpointDraft
from holdfast.contents.dcp import DCP_KEY
from holdfast.errors import SaveError
from holdfast.format.manifest import FileRecord, Manifest
from holdfast.integrations.torch_dcp_metadata import encode_metadata
from holdfast.stores.base import Store


@dataclass(frozen=True)
class Assignment:
    """What the coordinator tells every rank: where this checkpoint is being written, and by whose right."""

    store: str
    epoch: int
    draft: CheckpointDraft
    read_back: bool


def manifest_of(
    told: Assignment,
    metadata: Metadata,
    results: Sequence[Sequence[WriteResult]],
    *,
    metrics: Mapping[str, float],
    notes: str,
) -> Manifest:
    """The commit record of what all ranks have written; `metadata` learns where everything is."""
    flat = list(itertools.chain.from_iterable(results))
    written = {result.index: result.storage_data for result in flat}
    files = {place.file.record.name: place.file for place in written.values()}
    records = tuple(files[name].record for name in sorted(files))
    values = {file.key: file.values for file in files.values()}
    metadata.storage_data = written
    return Manifest(
        **_said_by(told.draft),
        store=told.store,
        files=records,
        values={DCP_KEY: encode_metadata(metadata, written, records), **values},
        contains=_summary(metadata, flat),
        environment=describe_environment(),
        metrics=metrics,
        notes=notes,
    )


def require_readable(store: Store, told: Assignment, record: FileRecord) -> None:
    """Read back what was just written, past the page cache: the right to delete something older."""
    found = Found(told.draft.name, Manifest(**_said_by(told.draft), store=told.store, files=(record,)))
    verdict = verify(store, found, headers=False)
    if not verdict.is_whole:
        raise SaveError(f"what was written does not read back: {'; '.join(verdict.problems)}")


def _said_by(draft: CheckpointDraft) -> dict[str, Any]:
    names = ("writer_epoch", "step", "nonce", "parent", "created", "reason")
    return {name: getattr(draft, name) for name in names}


def _summary(metadata: Metadata, results: Sequence[WriteResult]) -> dict[str, Any]:
    """Per top-level key of the state: how many tensors, how many bytes."""
    paths = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
    found: dict[str, dict[str, Any]] = {}
    names: dict[str, set[str]] = {}
    for result in results:
        fqn = result.index.fqn
        top = str(paths[fqn][0]) if paths.get(fqn) else fqn.partition(".")[0]
        part = found.setdefault(top, {"role": "dcp", "tensors": 0, "bytes": 0})
        part["bytes"] += result.size_in_bytes
        if result.index.offset is not None:
            names.setdefault(top, set()).add(fqn)
    for top, fqns in names.items():
        found[top]["tensors"] = len(fqns)
    return found
