"""Copies committed checkpoints into one outer tier, behind training, at that tier's own rhythm.

One thread per target, so that a slow or failing place delays nobody else. A failure is reported and tried
again; it never reaches training. The flusher itself commits at the target: a copy that is complete counts at
once, whatever happens to the process next.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from holdfast.checkpoints.find import Found
from holdfast.checkpoints.retain import Ledger, Retention, prune
from holdfast.clock import Clock
from holdfast.errors import Fenced, HoldfastError, InternalError, SaveError, StoreError, StoreFull
from holdfast.events import Emit, Flushed, FlushFailed, FlushSkipped, Pruned
from holdfast.format.manifest import Manifest, parse_manifest
from holdfast.stores.base import Store
from holdfast.tiers.bandwidth import Bandwidth, Cancelled
from holdfast.tiers.copying import Copier, SourceLost
from holdfast.tiers.ladder import Ladder
from holdfast.tiers.lasting_choice import LastingChoice

log = logging.getLogger("holdfast")
_FIRST_RETRY, _LONGEST_RETRY = 1.0, 300.0
# A thread that was told to give up does so at its next chunk.
_LAST_MOMENT = 2.0


@dataclass(frozen=True)
class FlushTier:
    """Where to, and how. `every` None means: the newest, as often as the place can take."""

    name: str
    target: Store
    every: int | None = None
    bytes_per_second: int | None = None
    # None: somebody else removes what is old here, another rank for instance.
    retention: Retention | None = None


@dataclass(frozen=True)
class Share:
    """Where several ranks fill one place: which files are this one's, and how the place gets its manifest.

    `publish(copier, name)` returns when the copy is committed, by a vote of the ranks for instance.
    """

    files: Callable[[Manifest], list[str]] | None = None
    publish: Callable[[Copier, str], None] = Copier.publish


class Flusher:
    def __init__(
        self,
        tier: FlushTier,
        ladder: Ladder,
        *,
        emit: Emit,
        clock: Clock,
        share: Share | None = None,
        spare: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self.tier = tier
        self.ledger = Ledger()
        self._cancel = threading.Event()
        self._copier = Copier(
            ladder,
            tier.target,
            bandwidth=Bandwidth(tier.bytes_per_second, clock=clock),
            cancel=self._cancel,
        )
        self._share = share or Share()
        self._spare = spare
        self._emit = emit
        self._clock = clock
        self._changed = threading.Condition()
        self._due: deque[str] = deque()
        # Of those that are due, the ones that a rule of this tier keeps: no newer one takes their turn.
        self._pinned: set[str] = set()
        self._choice = LastingChoice(tier.retention)
        self._commits = 0
        self._newest: str | None = None
        self._newest_flushed: str | None = None
        self._stopping = False
        self._fenced = False
        self._thread: threading.Thread | None = None

    def committed(self, name: str, manifest: Manifest | None = None, *, pin: bool = False) -> None:
        """A checkpoint is committed in a nearer tier. Never blocks, never raises."""
        with self._changed:
            self._commits += 1
            self._newest = name
            if self._fenced:
                return
            pin = pin or (manifest is not None and self._choice.wants(manifest))
            if pin:
                self._pinned.add(name)
            if self.tier.every is None:
                # Whatever still waits is superseded; what is under way, or kept, is finished first.
                waiting = [n for i, n in enumerate(self._due) if (i == 0 and self._busy) or n in self._pinned]
                self._due = deque([*waiting, name])
            elif pin or self._commits % self.tier.every == 0:
                self._due.append(name)
            self._start()

    def catch_up(self, there: Sequence[Found], near: Sequence[Found]) -> None:
        """What this tier lacks of an earlier life: what its rules keep, and the newest, whatever the rhythm
        says. Both are newest first."""
        have = {str(found.name) for found in there}
        self._choice.know(found.manifest for found in there if found.manifest)
        with self._changed:
            for name in self._choice.wanted(f.manifest for f in near if f.manifest):
                if name not in have:
                    self._pinned.add(name)
                    self._due.append(name)
            newest = str(near[0].name) if near else ""
            if newest > max(have, default=""):
                self._newest = newest
                if newest not in self._due:
                    self._due.append(newest)
            if self._due:
                self._start()

    @property
    def needed(self) -> frozenset[str]:
        """What nearer tiers must not let go yet: what is being copied, or comes next, or must last."""
        with self._changed:
            return frozenset([*list(self._due)[:1], *self._pinned])

    @property
    def is_behind(self) -> bool:
        """Whether the newest checkpoint of all is not here."""
        with self._changed:
            return self._newest is not None and self._newest != self._newest_flushed

    def wait_idle(self, limit: float) -> bool:
        """Until nothing is due. False if something still is after `limit` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._due, limit)

    def begin_stop(self) -> None:
        """The newest comes next, whatever the rhythm says; then what else is due; then the thread ends."""
        with self._changed:
            self._stopping = True
            newest = self._newest
            if newest is not None and newest != self._newest_flushed and not self._fenced:
                rest = [name for name in self._due if name != newest]
                under_way = list(self._due)[:1]
                self._due = deque(dict.fromkeys([*under_way, newest, *rest]))
            if self._due:
                self._start()
            self._changed.notify_all()

    def end_stop(self, limit: float) -> bool:
        """Wait for the thread, then make it give up. False if the newest checkpoint did not get here."""
        thread = self._thread
        if thread is not None:
            thread.join(max(limit, 0.0))
            if thread.is_alive():
                self._cancel.set()
                with self._changed:
                    self._changed.notify_all()
                thread.join(_LAST_MOMENT)
        return not self.is_behind

    # ---- on the thread

    @property
    def _busy(self) -> bool:
        return bool(self._due) and self._thread is not None

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name=f"holdfast-drain-{self.tier.name}", daemon=True
            )
            try:
                self._thread.start()
            except RuntimeError:
                # The system gives no more threads; the next commit asks again.
                self._thread = None
        self._changed.notify_all()

    def _run(self) -> None:
        _give_way()
        retry = _FIRST_RETRY
        while (name := self._next()) is not None:
            try:
                self._flush(name)
                retry = _FIRST_RETRY
            except Cancelled:
                return
            except SourceLost as error:
                self._skip(name, error.message)
            except Fenced as error:
                self._give_up(name, error)
                return
            except Exception as error:  # noqa: BLE001  reported; a copy that fails must not end the thread
                if not self._failed(name, error, retry):
                    return
                retry = min(2 * retry, _LONGEST_RETRY)

    def _next(self) -> str | None:
        with self._changed:
            # No limit: an idle flusher waits for work, and `begin_stop` wakes it.
            self._changed.wait_for(lambda: self._due or self._stopping or self._cancel.is_set())
            if self._cancel.is_set() or not self._due:
                return None
            if self.tier.every is None:
                # In their order, but of those that nobody keeps only the newest: at the end not the last.
                newest = max(self._due)
                self._due = deque(n for n in self._due if n in self._pinned or n == newest)
            return self._due[0]

    def _flush(self, name: str) -> None:
        started = self._clock.monotonic()
        there = name in self.tier.target.names()
        # It may be there alone: what memory has no room for is saved here first.
        manifest = parse_manifest(self.tier.target.manifest(name)) if there else self._copier.manifest(name)
        if not there:
            files = self._share.files(manifest) if self._share.files else None
            try:
                self._copier.copy(name, files)
            except StoreFull:
                # What an earlier process began may be what fills it. Tried again.
                self._sweep_before(name)
                raise
            self._share.publish(self._copier, name)
        with self._changed:
            # At the end the newest is copied first and older ones may follow.
            self._newest_flushed = max(name, self._newest_flushed or "")
            self._drop(name)
        seconds = self._clock.monotonic() - started
        self._emit(
            Flushed(
                time=self._clock.wall(),
                name=name,
                tier=self.tier.name,
                seconds=seconds,
                bytes=manifest.total_bytes,
            )
        )
        self._tidy(name)

    def _tidy(self, name: str) -> None:
        """Older copies go by this tier's own rules, unfinished ones because a newer is whole."""
        if self.tier.retention is None:
            return
        self.ledger.committed.add(name)
        try:
            self._sweep_before(name)
            prune(
                self.tier.target,
                self.tier.retention,
                self.ledger,
                retired=self._retired,
                spare=self._spare(),
            )
        except (StoreError, SaveError, InternalError) as error:
            log.warning("holdfast: older copies in %s stay: %s", self.tier.name, error)

    def _sweep_before(self, name: str) -> None:
        # Only where this process removes: other ranks may still be filling what they began. And what is due
        # will be gone on with: at the end the newest comes first, and other nodes may be ahead of this one.
        if self.tier.retention is not None:
            with self._changed:
                due = frozenset(self._due)
            for begun in self.tier.target.leftovers(before=name):
                if begun < name and begun not in due:
                    self.tier.target.abandon(begun)

    def _retired(self, name: str, why: str) -> None:
        self._emit(Pruned(time=self._clock.wall(), name=name, why=f"{self.tier.name}: {why}"))

    def _skip(self, name: str, why: str) -> None:
        self._copier.forget(name)
        with contextlib.suppress(HoldfastError):
            self.tier.target.abandon(name)
        with self._changed:
            self._drop(name)
        self._emit(FlushSkipped(time=self._clock.wall(), name=name, tier=self.tier.name, why=why))

    def _give_up(self, name: str, error: Fenced) -> None:
        """Another process writes there now. Nothing is removed: it may be going on with our files."""
        log.warning("holdfast: no more copies to %s: %s", self.tier.name, error)
        with self._changed:
            self._fenced = True
            # Nearer tiers need not keep anything for this one any more.
            self._due.clear()
            self._pinned.clear()
            self._changed.notify_all()
        self._emit(FlushSkipped(time=self._clock.wall(), name=name, tier=self.tier.name, why=error.message))

    def _failed(self, name: str, error: Exception, retry: float) -> bool:
        """Report, then wait. False if it was told to give up meanwhile."""
        log.warning("holdfast: copying %s to %s failed: %s", name, self.tier.name, error)
        self._emit(
            FlushFailed(
                time=self._clock.wall(), name=name, tier=self.tier.name, error=str(error), retry_seconds=retry
            )
        )
        if not self._cancel.wait(retry):
            self._supersede(name)
        return not self._cancel.is_set()

    def _supersede(self, name: str) -> None:
        with self._changed:
            newer = self.tier.every is None and self._due[-1] != name and name not in self._pinned
        if newer:
            self._skip(name, "a newer checkpoint is due")

    def _drop(self, name: str) -> None:
        with contextlib.suppress(ValueError):
            self._due.remove(name)
        self._pinned.discard(name)
        self._changed.notify_all()


def _give_way() -> None:
    """Training has the cores first. On Linux a priority belongs to a thread."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
