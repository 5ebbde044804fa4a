"""events.jsonl: what happened, one line each, for people and estimates. A hint, never truth.

Nothing here may fail a save: a line that cannot be written is counted and dropped. What has grown is made
small again (see stores/journal_rotation.py).
"""

from __future__ import annotations

import contextlib
import os

from holdfast.errors import CorruptCheckpoint, StoreError
from holdfast.events import Event
from holdfast.stores.io import StoreIO
from holdfast.stores.journal_rotation import FILE, MOST_BYTES, all_lines, rotate, size_now
from holdfast.stores.os_errors import store_errors
from holdfast.stores.posix import PosixIO

__all__ = ["FILE", "Journal", "read_events"]


class Journal:
    """Appends events. `dropped` counts the lines a failing disk cost us."""

    def __init__(self, path: str | os.PathLike[str], *, io: StoreIO | None = None) -> None:
        self.where = os.fspath(path)
        self.dropped = 0
        self._io: StoreIO = io if io is not None else PosixIO()
        # A killed predecessor may have left half a line; ours must not continue it.
        self._lead = "\n"
        self._size: int | None = None

    def append(self, *events: Event) -> None:
        """One line each, one write call for all: lines of several processes do not mix."""
        lines = "".join(f"{event.to_line()}\n" for event in events)
        data = (self._lead + lines).encode()
        try:
            root = self._io.open_root(self.where, create=False)
            try:
                self._io.append(root, FILE, data)
                self._turn(root, len(data))
            finally:
                self._io.close(root)
        except OSError:
            self.dropped += len(events)
            self._lead = "\n"
        else:
            self._lead = ""

    def _turn(self, root: int, added: int) -> None:
        # The lines are written; whatever goes wrong with making it small is tried again later.
        with contextlib.suppress(OSError, CorruptCheckpoint):
            self._size = size_now(self._io, root) if self._size is None else self._size + added
            if self._size > MOST_BYTES:
                # Others may write here too, so ask; and if it fails, not again at the very next line.
                if size_now(self._io, root) > MOST_BYTES:
                    self._size //= 2
                    rotate(self._io, root)
                self._size = None


def read_events(path: str | os.PathLike[str], *, io: StoreIO | None = None) -> list[Event]:
    """Every whole line that this version understands, in the order written, as far back as is kept; none if
    there is no log."""
    where, used = os.fspath(path), io if io is not None else PosixIO()
    try:
        with store_errors("read the event log", where):
            root = used.open_root(where, create=False)
            try:
                lines = all_lines(used, root)
            finally:
                used.close(root)
    except CorruptCheckpoint as error:
        raise StoreError(f"cannot read the event log in {where}: {error.message}", hint=error.hint) from error
    except StoreError:
        if not os.path.isdir(where):
            return []
        raise
    events = (Event.from_line(line.decode("utf-8", "replace")) for line in lines)
    return [event for event in events if event is not None]
