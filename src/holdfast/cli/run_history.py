"""What `holdfast run` sees and records, with one node and with many."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from holdfast.checkpoints.find import committed
from holdfast.errors import HoldfastError, SetupError
from holdfast.events import Event, SupervisorEnded
from holdfast.jobs.notices import NoticePoller
from holdfast.stores.directory import DirectoryStore
from holdfast.stores.journal import Journal


def leaving(notices: NoticePoller | None) -> str | None:
    """Advice to move soon is for the training itself, which can save without stopping."""
    notice = None if notices is None else notices.newest
    return str(notice) if notice is not None and notice.stops else None


def newest_checkpoint(run: str) -> str | None:
    """Progress, as the supervisor understands it. A folder that cannot be read shows none."""
    try:
        return next((str(one.name) for one in committed(DirectoryStore(run)) if one.manifest), None)
    except HoldfastError:
        return None


def output_opener(pattern: str | None, *, to_stderr: bool) -> Callable[[int, int], IO[bytes] | None]:
    """From the number of an attempt and a rank to where the command's output goes; None: where ours does."""

    def open_output(attempt: int, rank: int) -> IO[bytes] | None:
        if pattern is None:
            # With --json, standard output belongs to the one object at the end.
            return os.fdopen(os.dup(sys.stderr.fileno()), "wb") if to_stderr else None
        # People count from 1, and so do the messages beside it.
        path = Path(pattern.replace("{attempt}", str(attempt + 1)).replace("{rank}", str(rank)))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("ab")
        except OSError as error:
            raise SetupError(
                f"cannot write the output to {path}: {error.strerror}", hint="choose another --output"
            ) from error

    return open_output


class History:
    """Every event to the screen, to the log, and, once the run's folder is known, to its journal."""

    def __init__(self, log: str | None, tell: Callable[[Event], None]) -> None:
        self._log = log
        self._writing = threading.Lock()
        self._tell = tell
        self._waiting: list[Event] = []
        self._all: list[Event] = []
        self.folder: str | None = None

    def report(self, event: Event, folder: str | None) -> None:
        with self._writing:
            self._record(event, folder)

    def _record(self, event: Event, folder: str | None) -> None:
        self._tell(event)
        self._all.append(event)
        self._waiting.append(event)
        if self._log is not None:
            try:
                with open(self._log, "a", encoding="utf-8") as file:
                    file.write(event.to_line() + "\n")
            except OSError as error:
                raise SetupError(
                    f"cannot write the log {self._log}: {error.strerror}", hint="choose another --log"
                ) from error
        if folder is not None:
            self.folder = folder
            Journal(folder).append(*self._waiting)
            self._waiting.clear()

    @property
    def says_the_end(self) -> bool:
        return any(isinstance(event, SupervisorEnded) for event in self._all)

    def as_json(self) -> list[dict[str, Any]]:
        return [{"event": type(event).__name__, **asdict(event)} for event in self._all]
