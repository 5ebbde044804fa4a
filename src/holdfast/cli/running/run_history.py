"""What `holdfast run` sees, says and records, with one node and with many."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from holdfast.checkpoints.find import look
from holdfast.cli.render import LiveLine, clean
from holdfast.errors import HoldfastError, SetupError
from holdfast.events import AttemptEnded, AttemptStarted, Event, SupervisorEnded, Warned
from holdfast.format.names import CheckpointName, parse_checkpoint_name
from holdfast.jobs.notices import NoticePoller
from holdfast.jobs.supervisor import Status
from holdfast.stores.base import Store
from holdfast.stores.journal import Journal
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.opening import readable_tiers
from holdfast.units import format_seconds


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
        stores = [CheckpointStore(run)]
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


class RunView:
    """What `holdfast run` says on standard error: a line for every event, and a live one in between."""

    def __init__(self, *, live: bool) -> None:
        self._line = LiveLine(live=live)
        self.clear = self._line.clear

    def tell(self, event: Event) -> None:
        text = describe(event)
        if text:
            self.clear()
            print(f"holdfast run: {clean(text)}", file=sys.stderr, flush=True)

    def show(self, status: Status) -> None:
        self._line.show(status_line(status))


def describe(event: Event) -> str | None:
    """One line for people; None for what they need not know."""
    if isinstance(event, AttemptStarted):
        return f"attempt {event.attempt + 1} started (pid {event.pid})"
    if isinstance(event, AttemptEnded):
        ended = event.detail if event.detail.startswith(event.cause) else f"{event.cause}, {event.detail}"
        saved = f"; newest checkpoint {event.checkpoint}" if event.checkpoint else ""
        then = f"; {event.then}" if event.will_restart else ""
        lived = format_seconds(event.seconds)
        return f"attempt {event.attempt + 1} ended after {lived}: {ended}{saved}{then}"
    if isinstance(event, SupervisorEnded):
        return f"exit code {event.exit_code}: {event.why}"
    return event.message if isinstance(event, Warned) else None


def status_line(status: Status) -> str:
    parts = [f"attempt {status.attempt + 1}"]
    if status.pausing is not None:
        parts.append(f"starts in {format_seconds(round(status.pausing))}")
    else:
        parts.append(f"up {format_seconds(round(status.seconds))}")
    if status.beat is not None:
        parts.append(f"step {status.beat.step:,}, {status.beat.phase}")
    if status.restarts:
        parts.append(f"{status.restarts} failures so far")
    return "holdfast run: " + " · ".join(parts)
