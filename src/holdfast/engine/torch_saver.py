"""The save flow: snapshot on the training thread, write and commit behind it, outcome back to the caller.

A failed save never kills or hangs training and never poisons the next one: its memory comes back, its
error is kept for whoever asks, and the next boundary starts afresh from the live state.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.capture.torch_inflate import require_inflatable
from holdfast.capture.torch_plan import ImagePlan, encode_values, summarise
from holdfast.checkpoints.retention import NOT_FINITE
from holdfast.checkpoints.write import CheckpointDraft, Committed
from holdfast.clock import Clock
from holdfast.engine.background import Worker
from holdfast.engine.handle import SaveHandle
from holdfast.engine.torch_not_finite import first_nan
from holdfast.engine.torch_snapshots import Snapshots, Taken
from holdfast.engine.writers import Writer
from holdfast.errors import HoldfastError, InternalError, SaveError, SetupError, TornSnapshot
from holdfast.events import Emit, SaveCommitted, SaveFailed, SnapshotTaken, SnapshotTorn, Warned
from holdfast.format.manifest import Parent, utc_text

log = logging.getLogger("holdfast")


@dataclass(frozen=True, kw_only=True)
class SaveRequest:
    """Why this save, and what its manifest should say."""

    step: int
    reason: str
    progress: Mapping[str, Any]
    # What every rank calls this save.
    save: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    notes: str = ""
    keep: str | None = None


class HasEpoch(Protocol):
    @property
    def writer_epoch(self) -> int: ...


class Saver:
    def __init__(
        self,
        store: HasEpoch,
        writer: Writer,
        snapshots: Snapshots,
        environment: Mapping[str, Any],
        clock: Clock,
        emit: Emit,
        persister: Worker,
        *,
        wait_limit: float,
        parent: Parent | None,
        after_commit: Callable[[Committed], None],
    ) -> None:
        self._store = store
        self._writer = writer
        self._snapshots = snapshots
        self._environment = environment
        self._clock = clock
        self._emit = emit
        self._persister = persister
        self._wait_limit = wait_limit
        self._parent = parent
        self._after_commit = after_commit
        self._previous: Committed | None = None
        self._pending: list[SaveHandle] = []
        self._turn = threading.Lock()
        self._said_stale = False
        self._said_not_finite = False
        self._known_readable: Sequence[ImagePlan] = ()
        self.last_mode: str = "overlapped"

    @property
    def in_flight(self) -> bool:
        return bool(self._pending) and not all(handle.done for handle in self._pending)

    def start(
        self, request: SaveRequest, *, blocking: bool = False, slot_timeout: float = 0.0
    ) -> SaveHandle | None:
        """Take a snapshot and hand it on. None if no staging slot was free."""
        handle = SaveHandle(request.step, request.reason, self._wait_limit)
        started = self._clock.monotonic()
        try:
            taken = self._snapshots.take(blocking=blocking, slot_timeout=slot_timeout)
        except SetupError as error:
            # A state that cannot be stored will not be at the next save either. Nobody must learn at the end
            # of a training that it has no checkpoint.
            self._failed_at_once(handle, request, error)
            raise
        except HoldfastError as error:
            return self._failed_at_once(handle, request, error)
        except Exception as error:  # noqa: BLE001  state_dict() is the user's code; carried by the handle
            failure = SaveError(f"cannot snapshot step {request.step}: {error!r}")
            return self._failed_at_once(handle, request, failure)
        if taken is None:
            self._persister.submit(lambda: self._writer.decline(request.save, "no staging memory is free"))
            return None
        self.last_mode = taken.mode
        self._pending.append(handle)
        if taken.snapshot is None:
            # Streamed from the live tensors: nothing may change until it is written.
            self._persist(handle, request, taken, 0.0)
            handle.stall_seconds = self._clock.monotonic() - started
        else:
            before_copy = self._clock.monotonic() - started - taken.snapshot.stall_seconds
            self._persister.submit(lambda: self._persist(handle, request, taken, before_copy))
        return handle

    def start_held(self, request: SaveRequest) -> SaveHandle | None:
        """Save what the snapshots hold. None if it is gone, or if something has moved since."""
        taken = self._snapshots.finish_held()
        if taken is None or taken.snapshot is None:
            return None
        if taken.snapshot.error is not None:
            taken.release()
            return None
        handle = SaveHandle(request.step, request.reason, self._wait_limit)
        self._pending.append(handle)
        self._persister.submit(lambda: self._persist(handle, request, taken, 0.0))
        return handle

    def _failed_at_once(self, handle: SaveHandle, request: SaveRequest, error: HoldfastError) -> SaveHandle:
        self._pending.append(handle)
        self._persister.submit(lambda: self._writer.decline(request.save, error.message))
        self._emit(SaveFailed(time=self._clock.wall(), step=handle.step, error=str(error)))
        handle.failed(error)
        return handle

    def finished(self) -> list[SaveHandle]:
        """Saves that ended since the last call, oldest first. For the training thread."""
        ended = [handle for handle in self._pending if handle.done]
        self._pending = [handle for handle in self._pending if handle not in ended]
        return ended

    def wait_for_all(self) -> None:
        """Until no save is in flight, or the limit has passed."""
        for handle in self._pending:
            handle.ended_within(self._wait_limit)

    def _persist(self, handle: SaveHandle, request: SaveRequest, taken: Taken, before_copy: float) -> None:
        """On the background worker, or on the training thread where a save is streamed: one at a time, for
        each names the one before as its parent and prunes. Must settle the handle and give memory back."""
        if not self._turn.acquire(timeout=self._wait_limit):
            taken.release()
            late = SaveError(f"step {request.step}: an earlier save is still being written")
            self._writer.decline(request.save, late.message)
            self._report(handle, late)
            return
        try:
            self._persist_in_turn(handle, request, taken, before_copy)
        finally:
            self._turn.release()

    def _persist_in_turn(
        self, handle: SaveHandle, request: SaveRequest, taken: Taken, before_copy: float
    ) -> None:
        try:
            committed = self._write(handle, request, taken, before_copy)
        except HoldfastError as error:
            self._report(handle, error)
        except Exception as error:  # noqa: BLE001  carried to the caller through the handle
            self._report(handle, InternalError(f"saving step {request.step} failed: {error!r}"))
        else:
            self._snapshots.committed(taken)
            self._warn_if_stale(committed)
            self._previous, self._parent = committed, committed.as_parent
            handle.committed(str(committed.name))
            self._emit(
                SaveCommitted(
                    time=self._clock.wall(),
                    step=request.step,
                    name=str(committed.name),
                    persist_seconds=handle.persist_seconds,
                    bytes=handle.bytes,
                    reason=request.reason,
                )
            )
            self._after_commit(committed)

    def _write(self, handle: SaveHandle, request: SaveRequest, taken: Taken, before_copy: float) -> Committed:
        snapshot = taken.snapshot
        try:
            draft = self._prepare(request, taken)
            if snapshot is not None:
                handle.stall_seconds = before_copy + snapshot.stall_seconds
            started = self._clock.monotonic()
            handle.bytes = taken.plan.total_bytes
            committed = self._writer.write(
                request.save,
                draft,
                taken.sources,
                {image.file: image.layout for image in taken.plan.images},
                taken.claims(),
                lambda: self._snapshots.sealed(taken, str(draft.name)),
            )
            handle.persist_seconds = self._clock.monotonic() - started
            self._emit(
                SnapshotTaken(
                    time=self._clock.wall(),
                    step=request.step,
                    mode=taken.mode,
                    # Read again: the fence may have waited since.
                    stall_seconds=before_copy + snapshot.stall_seconds
                    if snapshot
                    else handle.persist_seconds,
                    copy_seconds=snapshot.copy_seconds if snapshot else 0.0,
                    bytes=handle.bytes,
                )
            )
            if snapshot is not None:
                handle.stall_seconds = before_copy + snapshot.stall_seconds
            return committed
        finally:
            taken.release()

    def _prepare(self, request: SaveRequest, taken: Taken) -> CheckpointDraft:
        """Wait for the copy. What goes wrong here, other ranks must hear before they wait for our part."""
        snapshot = taken.snapshot
        try:
            if snapshot is not None and not snapshot.wait(self._wait_limit):
                raise SaveError(f"copying the state of step {request.step} did not finish")
            if snapshot is not None and snapshot.error is not None:
                raise snapshot.error
            draft = self._draft(request, taken)
            self._require_readable(taken, draft)
            return draft
        except Exception as error:
            self._writer.decline(request.save, str(error))
            raise

    def _require_readable(self, taken: Taken, draft: CheckpointDraft) -> None:
        """Nothing is written that a restore would refuse. Once for each layout: the rest are bytes."""
        if taken.plan.images is not self._known_readable:
            for image in taken.plan.images:
                require_inflatable(image.layout, image.file, draft.values)
            self._known_readable = taken.plan.images

    def _draft(self, request: SaveRequest, taken: Taken) -> CheckpointDraft:
        return CheckpointDraft(
            writer_epoch=self._store.writer_epoch,
            step=request.step,
            created=utc_text(self._clock.wall()),
            reason=request.reason,
            parent=self._parent,
            progress=request.progress,
            values=encode_values(taken.parts),
            contains=summarise(taken.parts),
            environment=self._environment,
            metrics=request.metrics,
            tags=self._tags(request, taken),
            notes=request.notes,
            keep=request.keep,
            roles={image.file: image.role for image in taken.plan.images},
        )

    def _tags(self, request: SaveRequest, taken: Taken) -> tuple[str, ...]:
        what = "the loss is not finite" if NOT_FINITE in request.tags else None
        if what is None and (label := first_nan(taken)) is not None:
            what = f"{label} holds NaN"
        if what is not None and not self._said_not_finite:
            message = (
                f"at step {request.step} {what}; the newest checkpoint from before stays, whatever keep= "
                "says; to go back to it, start again with holdfast.Run(..., on_nan='rewind')"
            )
            log.warning("holdfast: %s", message)
            self._emit(Warned(time=self._clock.wall(), message=message))
        self._said_not_finite = what is not None
        return tuple(dict.fromkeys((*request.tags, *([NOT_FINITE] if what else []))))

    def _report(self, handle: SaveHandle, error: HoldfastError) -> None:
        if isinstance(error, TornSnapshot):
            self._emit(SnapshotTorn(time=self._clock.wall(), step=handle.step, tensor=error.message))
        self._emit(SaveFailed(time=self._clock.wall(), step=handle.step, error=str(error)))
        handle.failed(error)

    def _warn_if_stale(self, committed: Committed) -> None:
        """Every weight equal to the last save's although steps went by: a stale buffer, or lr = 0."""
        previous = self._previous
        if previous is None or previous.manifest.step == committed.manifest.step or self._said_stale:
            return
        if not committed.sha256:
            return  # Another rank's commit: of the files, only this rank's own are known here.
        if NOT_FINITE in committed.manifest.tags:
            return  # weights that are not numbers stay what they are, and that is said elsewhere
        # A target network or a teacher is not meant to change with every step.
        resting = {f"{key}.safetensors" for key in self._snapshots.models_at_rest()}
        before, after = (
            {f.name: f.digests for f in which.manifest.files if f.role == "weights" and f.name not in resting}
            for which in (previous, committed)
        )
        if after and before == after:
            self._said_stale = True
            log.warning(
                "holdfast: step %d has exactly the weights of step %d; is the learning rate 0, or is the "
                "model that is trained not the one that is tracked?",
                committed.manifest.step,
                previous.manifest.step,
            )
