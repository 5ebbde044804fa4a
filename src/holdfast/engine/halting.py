"""The HALT note, seen from training: a run that finds one does not begin, and one that is open ends."""

from __future__ import annotations

import logging

from holdfast.engine.background import Worker
from holdfast.engine.stopping import Stopped, Stopping
from holdfast.jobs import exit_codes
from holdfast.jobs.halt import HaltNote, read_halt
from holdfast.ranks.team import Team

log = logging.getLogger("holdfast")


class HaltWatch:
    """Looks on the worker, so that a file system which does not answer keeps no training waiting."""

    def __init__(self, folder: str, worker: Worker, stopping: Stopping) -> None:
        self._folder = folder
        self._worker = worker
        self._stopping = stopping
        self._is_looking = False

    def look_soon(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._worker.submit(self._look)

    def _look(self) -> None:
        try:
            note = _look(self._folder)
            if note is not None:
                self._stopping.halt(str(note))
        finally:
            self._is_looking = False


def end_if_halted(folder: str, team: Team | None, limit: float) -> None:
    """Raises Stopped, with the code that keeps a supervisor from trying again, on all ranks or on none."""
    if team is None:
        note = _look(folder)
        words = "" if note is None else str(note)
    else:
        note = _look(folder) if team.leads else None
        words = team.share("halt", str(note or "").encode(), limit).decode()
    if not words:
        return
    log.error("holdfast: %s is %s; `holdfast halt --clear %s` lets it run again", folder, words, folder)
    if team is not None:
        # Rank 0 stays until everybody has heard.
        team.part(limit)
        team.close()
    raise Stopped(exit_codes.DO_NOT_RESTART)


def _look(folder: str) -> HaltNote | None:
    try:
        return read_halt(folder)
    except OSError as error:
        log.debug("holdfast: cannot look for a HALT note in %s: %s", folder, error)
        return None
