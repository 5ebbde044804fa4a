"""Save through torch.distributed.checkpoint into a holdfast folder: each rank an image, rank 0 the commit."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from holdfast.capture.environment import describe_environment
from holdfast.checkpoints.find import Found
from holdfast.checkpoints.retain import Retention, parse_keep, prune
from holdfast.checkpoints.verify import verify
from holdfast.checkpoints.write import CheckpointDraft
from holdfast.clock import SystemClock
from holdfast.contents.dcp import DCP_KEY
from holdfast.errors import InternalError, SaveError, SetupError, StoreError
from holdfast.format.manifest import FileRecord, Manifest, Parent, utc_text
from holdfast.format.names import MAX_STEP
from holdfast.format.sealed import seal_of
from holdfast.integrations.checkpoint_ids import ends_in_a_step, step_in
from holdfast.integrations.torch_dcp_items import RankImage, Written, stored_bytes
from holdfast.integrations.torch_dcp_metadata import encode_metadata
from holdfast.integrations.writer_seats import Seat, leave_seat, seat_epoch, take_seat
from holdfast.stores.base import Store
from holdfast.stores.store import CheckpointStore

log = logging.getLogger("holdfast")

# What manifests, headers and objects take beside the tensors, for the free-space check.
_OVERHEAD_BYTES = 16 << 20


class HoldfastWriter(StorageWriter):
    """For `dcp.save` and `dcp.async_save`: a checkpoint that is committed as a whole or not at all.

    >>> writer = HoldfastWriter("runs/llama", keep=3)
    >>> dcp.save(state, checkpoint_id="1000", storage_writer=writer)

    `path` is one folder for the whole training, on a file system that all ranks see; each save adds a
    checkpoint to it. The step is `step=`, or the number that DCP's `checkpoint_id` ends in, or else one more
    than the newest. `keep` says how many stay ("latest 3, every 1000 steps"; all of them if None); then each
    rank reads its file back, because nothing is deleted before its successors have been verified.

    The first rank holds the folder until `close()` or the end of the process; a second job gets RunInUse.
    `take_over=True` fences off a process that still holds it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        step: int | None = None,
        keep: int | str | Retention | None = None,
        metrics: Mapping[str, float] | None = None,
        notes: str = "",
        take_over: bool = False,
    ) -> None:
        super().__init__()
        self.path = os.path.abspath(os.fspath(path))
        if step is not None and (type(step) is not int or not 0 <= step <= MAX_STEP):
            raise SetupError(f"step={step!r} is not the number of a step")
        self.step = step
        self.metrics = dict(metrics or {})
        self.notes = notes
        self._retention = None if keep is None else parse_keep(keep)
        self._take_over = take_over
        self._known_epoch: int | None = None
        # A thread saves one at a time; asynchronous saves each come in a thread of their own.
        self._now = threading.local()

    # ---- what DCP calls, in this order

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self.step = step_in(checkpoint_id)

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=self.path)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("use_collectives") is False:
            raise SetupError(
                "HoldfastWriter commits all ranks together and cannot save with use_collectives=False",
                hint="leave use_collectives out",
            )
        self._now.rank = kwargs.get("rank", 0)
        self._now.seat = None
        if is_coordinator:
            # Before anything is planned or written: a folder in use should cost nobody a thing.
            self._now.seat = take_seat(self.path, self._known_epoch, take_over=self._take_over)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        if not all(getattr(plan, "usable", True) for plan in plans):
            raise SetupError(
                "HoldfastWriter gives every save a place of its own, which a cached plan does not know",
                hint="leave enable_plan_caching off",
            )
        seat = self._seat
        draft = CheckpointDraft(
            writer_epoch=seat.epoch,
            step=seat.newest_step() + 1 if self.step is None else self.step,
            created=utc_text(SystemClock().wall()),
            reason="dcp.save",
            parent=seat.parent,
        )
        need = sum(stored_bytes(plan.items) for plan in plans)
        seat.begin(str(draft.name), need + _OVERHEAD_BYTES)
        told = Assignment(seat.store.uuid, seat.epoch, draft, read_back=self._retention is not None)
        self._now.assignment = told
        return [replace(plan, storage_data=told) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        told = plan.storage_data
        if not isinstance(told, Assignment):
            raise InternalError("DCP handed over a plan that no HoldfastWriter has prepared")
        store = self._store(told)
        placed: dict[MetadataIndex, Written] = {}
        if plan.items:
            image = RankImage(self._now.rank, plan.items, planner)
            record = replace(store.write(str(told.draft.name), image.source), role="dcp")
            if told.read_back:
                require_readable(store, told, record)
            placed = image.written(record)
        future: Future[list[WriteResult]] = Future()
        future.set_result(
            [WriteResult(item.index, stored_bytes([item]), placed[item.index]) for item in plan.items]
        )
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        seat, told = self._seat, self._now.assignment
        try:
            manifest = manifest_of(told, metadata, results, metrics=self.metrics, notes=self.notes)
            data = manifest.to_bytes()
            seat.store.publish(str(manifest.name), data)
        except BaseException:
            seat.abandon(str(told.draft.name))
            raise
        seat.begun.pop(str(manifest.name), None)
        seat.parent = Parent(str(manifest.name), seal_of(data))
        self._tidy(seat, str(manifest.name), told.read_back)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return ends_in_a_step(checkpoint_id)

    # ---- who holds the folder

    def close(self) -> None:
        """Let other processes write here. Needs calling only where this process goes on."""
        leave_seat(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # DCP sends the writer to a process of its own that saves for this one, by the same right.
        state = {name: value for name, value in vars(self).items() if name != "_now"}
        return {**state, "_known_epoch": seat_epoch(self.path) or self._known_epoch}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _now=threading.local())

    # ---- how

    @property
    def _seat(self) -> Seat:
        seat: Seat | None = getattr(self._now, "seat", None)
        if seat is None:
            raise InternalError("DCP asked for a commit in a process that does not coordinate")
        return seat

    def _store(self, told: Assignment) -> CheckpointStore:
        seat: Seat | None = self._now.seat
        if seat is not None:
            return seat.store
        store = CheckpointStore(self.path)
        try:
            store.join(told.epoch)
            if store.uuid == told.store:
                return store
        except StoreError as error:
            raise _not_shared(self.path) from error
        raise _not_shared(self.path)

    def _tidy(self, seat: Seat, name: str, was_read_back: bool) -> None:
        """The successor is durable, so something older may go. Never raises: too many hurt nobody."""
        seat.ledger.committed.add(name)
        if was_read_back:
            seat.ledger.verified.add(name)
        if self._retention is None:
            return
        try:
            done = prune(seat.store, self._retention, seat.ledger)
            if done.refused and len(seat.ledger.committed) > self._retention.latest:
                log.warning("holdfast: nothing was pruned: %s", done.refused)
        except (StoreError, SaveError) as error:
            log.warning("holdfast: pruning failed, older checkpoints stay: %s", error)


def _not_shared(path: str) -> SetupError:
    return SetupError(
        f"{path} is not the folder on this rank that it is on the first one",
        hint="it must be on a file system that all ranks share",
    )


# ---- One DCP checkpoint and its ranks: what the first tells the others, the manifest made of their
# answers.


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
