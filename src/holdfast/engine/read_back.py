"""Reads committed checkpoints back, behind training and behind saves: before anything older may go.

It has a thread of its own and gives way: while a save is in flight it stands still, and it never takes more
than its share of the time. A checkpoint that a newer one has overtaken before its turn came is not read at
all; the one that is being read is finished, or where saves come quickly none ever would be.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from holdfast.checkpoints.find import Found
from holdfast.checkpoints.verify import verify
from holdfast.clock import Clock
from holdfast.engine.background import give_way
from holdfast.errors import HoldfastError
from holdfast.stores.base import Store

log = logging.getLogger("holdfast")
SHARE = 0.25
# How long one look at whether the save is over may wait: an event would have to be set by every save.
_LOOK_SECONDS = 0.05
# How often rank 0 asks whether the others are done, and how long it waits for them.
_RANKS_SECONDS, _PATIENCE_SECONDS = 0.5, 600.0
# So many commits may come before a rank hears which of them is to be read.
_KNOWN = 64
END = "-"


class Ranks(Protocol):
    """How the ranks of a job share the reading."""

    @property
    def leads(self) -> bool: ...
    def announce(self, name: str) -> None: ...
    def wanted(self) -> str | None: ...
    def vote(self, name: str, whole: bool) -> None: ...
    def outcome(self, name: str) -> bool | None: ...


class _Stopped(Exception): ...


class ReadBack:
    """`done(name, whole)` is called on the thread for each that was read, `tidy` when there is something new
    to go by. `rest` is what is still worth reading when the run has ended. With `ranks`, rank 0 says which
    one is read, and each rank reads its own part of it."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        busy: Callable[[], bool],
        done: Callable[[str, bool], None],
        tidy: Callable[[], None],
        rest: Callable[[], Found | None] = lambda: None,
        ranks: Ranks | None = None,
        share: float = SHARE,
    ) -> None:
        self._store = store
        self._clock = clock
        self._busy, self._done, self._tidy, self._rest, self._ranks = busy, done, tidy, rest, ranks
        self._pause_for_each = 1.0 / share - 1.0
        self._changed = threading.Condition()
        self._next: Found | None = None
        # For ranks that follow: what may be asked for.
        self._known: dict[str, Found] = {}
        self._reading: str | None = None
        self._stop = threading.Event()
        self._hurry = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._piece_began = 0.0

    @property
    def reading(self) -> frozenset[str]:
        """What must not go while it is being read, or nothing would ever be known of any."""
        return frozenset({self._reading} if self._reading is not None else ())

    def submit(self, found: Found) -> None:
        """The newest of all, from now on the next to be read. Never blocks."""
        with self._changed:
            self._next = found
            self._known[str(found.name)] = found
            while len(self._known) > _KNOWN:
                del self._known[min(self._known)]
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="holdfast-read-back", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:
                    # The system gives no more threads: too many checkpoints hurt nobody.
                    self._thread = None
            self._changed.notify_all()

    def close(self, limit: float) -> None:
        """Finish within `limit` seconds, at full speed, then give up."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._hurry.set()
        thread = self._thread
        if thread is not None:
            if limit > 0:
                thread.join(limit)
            self._stop.set()
            with self._changed:
                self._changed.notify_all()
            # It looks between two chunks.
            thread.join(10.0)

    # ---- on the thread

    def _run(self) -> None:
        give_way()
        take = self._take if self._ranks is None or self._ranks.leads else self._obey
        try:
            while (found := take()) is not None:
                # First: what was known before may already let something go.
                self._tidy()
                self._read(found)
                self._reading = None
        except _Stopped:
            return
        except Exception:
            log.exception("holdfast: reading checkpoints back failed unexpectedly; older ones stay")
        finally:
            self._reading = None
            if self._ranks is not None and self._ranks.leads:
                self._ranks.announce(END)

    def _take(self) -> Found | None:
        with self._changed:
            # No limit: it waits for work, and `close` wakes it.
            self._changed.wait_for(lambda: self._next or self._closing)
            found, self._next = self._next, None
        found = found or self._rest()
        if found is not None:
            self._reading = str(found.name)
            if self._ranks is not None:
                self._ranks.announce(self._reading)
        return found

    def _obey(self) -> Found | None:
        """What rank 0 wants to be read, as soon as this rank has heard that it is committed."""
        assert self._ranks is not None
        wanted: str | None = None
        while not self._stop.is_set():
            wanted = self._ranks.wanted() or wanted
            if wanted == END:
                return None
            with self._changed:
                if wanted in self._known:
                    return self._known.pop(wanted)
                self._changed.wait_for(self._stop.is_set, _RANKS_SECONDS)
        return None

    def _read(self, found: Found) -> None:
        name = str(found.name)
        self._piece_began = self._clock.monotonic()
        try:
            # One thread, bytes only: this runs behind a training that wants the cores and the interpreter.
            verdict = verify(
                self._store, found, threads=1, headers=False, progress=lambda done, total: self._pause()
            )
        except HoldfastError as error:
            log.warning("holdfast: %s could not be read back: %s", name, error)
            return
        if verdict.doubt is not None:
            log.warning("holdfast: %s could not be read back: %s", name, verdict.problems[0])
            return
        if not verdict.is_whole:
            log.error("holdfast: %s is damaged already: %s", name, verdict.problems[0])
        if self._ranks is not None:
            self._ranks.vote(name, verdict.is_whole)
        whole = self._outcome(name) if verdict.is_whole else False
        if whole is not None:
            self._done(name, whole)
            self._tidy()

    def _outcome(self, name: str) -> bool | None:
        """Whether all ranks found it whole; None if some did not say so in time."""
        ranks, end = self._ranks, self._clock.monotonic() + _PATIENCE_SECONDS
        if ranks is None or not ranks.leads:
            return True
        while (whole := ranks.outcome(name)) is None and self._clock.monotonic() < end:
            if self._stop.wait(_RANKS_SECONDS):
                raise _Stopped
        return whole

    def _pause(self) -> None:
        """Between two chunks: the share of the time, and saves first."""
        spent = self._clock.monotonic() - self._piece_began
        if not self._hurry.is_set():
            self._hurry.wait(spent * self._pause_for_each)
        while self._busy() and not self._hurry.is_set() and not self._stop.is_set():
            self._hurry.wait(_LOOK_SECONDS)
        if self._stop.is_set():
            raise _Stopped
        self._piece_began = self._clock.monotonic()
