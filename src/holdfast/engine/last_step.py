"""The last step that was done, in shared memory: known to the step even of a process that was killed.

The journal hears of progress every few seconds, which at a failure every minute is most of what was lost.
Here a boundary costs one small write into a page of /dev/shm. A machine that is lost takes the page with it;
then the journal must do.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Sequence
from glob import escape, glob

from holdfast.errors import HoldfastError
from holdfast.events import Event, LastSign, Progress, Restored, RunEnded, RunStarted, SaveCommitted
from holdfast.stores.ownership import make_private, not_private
from holdfast.tiers.memory_folder import default_root

# Step, wall-clock time, and the step again: a kill in the middle of a write leaves two that differ.
_RECORD = struct.Struct("<qdq")
# Written in turn, so that one of them is always whole.
_PLACES = (0, 64)


class LastStep:
    """Belongs to one attempt of one run. Where there is no shared memory, it does nothing."""

    def __init__(self, uuid: str, epoch: int, *, keep: int | None = None, root: str | None = None) -> None:
        """`keep` is the attempt before, of which others may still want to read."""
        self._stem, self._path = _stem(uuid, root), _path(uuid, epoch, root)
        self._turn = 0
        self._page: mmap.mmap | None = None
        with contextlib.suppress(OSError, HoldfastError):
            make_private(os.path.dirname(self._path))
            mine = {self._path} if keep is None else {self._path, _path(uuid, keep, root)}
            for old in set(glob(f"{escape(_stem(uuid, root))}-*.step")) - mine:
                os.unlink(old)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(file, mmap.PAGESIZE)
                self._page = mmap.mmap(file, mmap.PAGESIZE)
            finally:
                os.close(file)

    def note(self, step: int, wall: float) -> None:
        if self._page is not None:
            self._turn ^= 1
            _RECORD.pack_into(self._page, _PLACES[self._turn], step, wall, step)

    def close(self, *, forget: bool) -> None:
        """`forget` after an end that was said in the journal."""
        page, self._page = self._page, None
        if page is not None:
            page.close()
            if forget:
                for one in glob(f"{escape(self._stem)}-*.step"):
                    with contextlib.suppress(OSError):
                        os.unlink(one)


def with_last_sign(events: Sequence[Event], uuid: str, root: str | None = None) -> list[Event]:
    """The journal, and behind it what shared memory knows of the attempt that wrote its end."""
    epoch = last_epoch(events)
    if epoch is None or isinstance(events[-1], RunEnded):
        return list(events)
    path = _path(uuid, epoch, root)
    try:
        if not_private(os.path.dirname(path)) is not None:
            return list(events)  # /dev/shm is open to everybody
        with open(path, "rb") as file:
            page = file.read(mmap.PAGESIZE)
    except OSError:
        return list(events)
    found = [_RECORD.unpack_from(page, place) for place in _PLACES if len(page) >= place + _RECORD.size]
    whole = [(step, wall) for step, wall, again in found if step == again and step > 0]
    if not whole:
        return list(events)
    step, wall = max(whole)
    return [*events, LastSign(time=wall, step=step)]


def last_epoch(events: Sequence[Event]) -> int | None:
    return next((e.writer_epoch for e in reversed(events) if isinstance(e, RunStarted)), None)


def reached_before(events: Sequence[Event]) -> int | None:
    """The step that the last attempt got to; None if it told nothing, or a restore has already counted it."""
    reached: int | None = None
    for event in events:
        if isinstance(event, RunStarted):
            reached = event.step
        elif isinstance(event, Restored):
            reached = None
        elif isinstance(event, (Progress, SaveCommitted, LastSign, RunEnded)) and reached is not None:
            reached = max(reached, event.step)
    return reached


def _stem(uuid: str, root: str | None) -> str:
    return os.path.join(root or default_root(), uuid)


def _path(uuid: str, epoch: int, root: str | None) -> str:
    return f"{_stem(uuid, root)}-{epoch}.step"
