"""Who writes a folder, when the writer is an object that a framework makes anew for every save.

A process keeps the epoch it claimed, so that a newer job fences it off however often it makes writers; and
the lock, so that a second job is refused while it lives.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, field

from holdfast.checkpoints.find import Found, look
from holdfast.checkpoints.retain import Ledger
from holdfast.errors import HoldfastError, RunInUse
from holdfast.format.manifest import Parent
from holdfast.format.names import CheckpointName, parse_checkpoint_name
from holdfast.stores.owner import is_alive, this_process
from holdfast.stores.store import CheckpointStore


@dataclass
class Seat:
    """This process's right to write one folder, and what it remembers of its saves there."""

    store: CheckpointStore
    epoch: int
    ledger: Ledger = field(default_factory=Ledger)
    parent: Parent | None = None
    # Places that were begun, with the thread that saves. Nobody tells us when another rank has failed.
    begun: dict[str, threading.Thread] = field(default_factory=dict)
    pid: int = field(default_factory=os.getpid)

    def begin(self, name: str, need_bytes: int) -> None:
        self.abandon_failed()
        self.store.begin(name, need_bytes)
        self.begun[name] = threading.current_thread()

    def abandon_failed(self) -> None:
        """Remove what saves that ended without a commit have left: a thread saves one at a time."""
        me = threading.current_thread()
        for name, thread in list(self.begun.items()):
            if thread is me or not thread.is_alive():
                self.abandon(name)

    def abandon(self, name: str) -> None:
        # Best effort: what cannot be removed now is swept by a later writer.
        self.begun.pop(name, None)
        with contextlib.suppress(HoldfastError):
            self.store.abandon(name)

    def newest_step(self) -> int:
        """Of the names alone; -1 in an empty folder."""
        return max((name.step for name in _names(self.store)), default=-1)


_seats: dict[str, Seat] = {}
_taking = threading.Lock()


def take_seat(path: str, known_epoch: int | None, *, take_over: bool = False) -> Seat:
    """The process's seat at `path`: the one it has, another process's epoch it was told of, or a new claim.

    Raises RunInUse while another job writes there, Fenced if one has taken over since.
    """
    with _taking:
        seat = _seats.get(path)
        if seat is not None and seat.pid == os.getpid() and seat.epoch >= (known_epoch or 0):
            return seat
        store = CheckpointStore(path)
        epoch = known_epoch or _claim(store, take_over=take_over)
        if known_epoch:
            store.join(epoch)
        seat = _seats[path] = Seat(store, epoch)
        seat.parent = _newest(store)
        return seat


def seat_epoch(path: str) -> int | None:
    """What to tell a process that shall write on behalf of this one."""
    seat = _seats.get(path)
    return seat.epoch if seat is not None and seat.pid == os.getpid() else None


def leave_seat(path: str) -> None:
    """Give the folder free for others. The next save here claims it anew."""
    with _taking:
        seat = _seats.pop(path, None)
    if seat is not None and seat.pid == os.getpid():
        for name in list(seat.begun):
            seat.abandon(name)
        seat.store.release()


def _claim(store: CheckpointStore, *, take_over: bool) -> int:
    try:
        return store.claim(take_over=take_over)
    except RunInUse:
        # A process that a framework started to save for this one is no rival.
        child_epoch = _epoch_of_a_child(store)
        if child_epoch is None:
            raise
        store.join(child_epoch)
        return child_epoch


def _epoch_of_a_child(store: CheckpointStore) -> int | None:
    """The newest writer epoch of the folder, if a living child of this process holds it."""
    newest = max(store.claims(), key=lambda claim: claim.epoch, default=None)
    if newest is None or newest.owner is None or not is_alive(newest.owner, this_process("")):
        return None
    try:
        with open(f"/proc/{newest.owner.pid}/stat") as file:
            # The command name stands in parentheses and may hold anything; state and parent follow.
            parent = int(file.read().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None
    return newest.epoch if parent == os.getpid() else None


def _newest(store: CheckpointStore) -> Parent | None:
    newest = max(_names(store), default=None)
    found: Found | None = look(store, newest) if newest else None
    return found.as_parent if found else None


def _names(store: CheckpointStore) -> list[CheckpointName]:
    return [name for text in store.names() if (name := parse_checkpoint_name(text))]
