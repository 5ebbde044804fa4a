"""What `holdfast run` sees and records, with one node and with many."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from holdfast.checkpoints.find import look
from holdfast.errors import HoldfastError, SetupError
from holdfast.events import Event, SupervisorEnded
from holdfast.format.names import CheckpointName, parse_checkpoint_name
from holdfast.jobs.notices import NoticePoller
from holdfast.stores.base import Store
from holdfast.stores.directory import DirectoryStore
from holdfast.stores.journal import Journal
from holdfast.tiers.opening import readable_tiers


def leaving(notices: NoticePoller | None) -> str | None:
    """Advice to move soon is for the training itself, which can save without stopping."""
    notice = None if notices is None else notices.newest
    return str(notice) if notice is not None and notice.stops else None


def newest_checkpoint(run: str) -> str | None:
    """Progress, as the supervisor understands it: the newest in any tier that this node sees, for the run's
    own folder may get one of ten. What cannot be read shows none."""
    try:
        stores: list[Store] = [tier.store for tier in readable_tiers(run)]
    except HoldfastError:
        stores = [DirectoryStore(run)]
    found = [name for name in map(_newest_in, stores) if name is not None]
    return str(max(found)) if found else None


def _newest_in(store: Store) -> CheckpointName | None:
    try:
        names = sorted(filter(None, map(parse_checkpoint_name, store.names())), reverse=True)
        return next((name for name in names if look(store, name).manifest is not None), None)
    except (HoldfastError, OSError):
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
