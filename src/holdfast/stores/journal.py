"""events.jsonl: what happened, one line each, for people and estimates. A hint, never truth.

Nothing here may fail a save: a line that cannot be written is counted and dropped.
"""

from __future__ import annotations

import os

from holdfast.events import Event
from holdfast.stores.io import StoreIO
from holdfast.stores.os_errors import store_errors
from holdfast.stores.posix import PosixIO

FILE = "events.jsonl"


class Journal:
    """Appends events. `dropped` counts the lines a failing disk cost us."""

    def __init__(self, path: str | os.PathLike[str], *, io: StoreIO | None = None) -> None:
        self.where = os.fspath(path)
        self.dropped = 0
        self._io: StoreIO = io if io is not None else PosixIO()
        # A killed predecessor may have left half a line; ours must not continue it.
        self._lead = "\n"

    def append(self, *events: Event) -> None:
        """One line each, one write call for all: lines of several processes do not mix."""
        lines = "".join(f"{event.to_line()}\n" for event in events)
        try:
            root = self._io.open_root(self.where, create=False)
            try:
                self._io.append(root, FILE, (self._lead + lines).encode())
            finally:
                self._io.close(root)
        except OSError:
            self.dropped += len(events)
            self._lead = "\n"
        else:
            self._lead = ""


def read_events(path: str | os.PathLike[str]) -> list[Event]:
    """Every whole line that this version understands, in the order written; none if there is no log."""
    where = os.fspath(path)
    if not os.path.exists(os.path.join(where, FILE)):
        return []
    with store_errors("read the event log", where), open(os.path.join(where, FILE), "rb") as file:
        lines = file.read().decode("utf-8", "replace").split("\n")
    return [event for event in map(Event.from_line, lines) if event is not None]
