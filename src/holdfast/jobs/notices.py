"""What the provider of a machine announces about its end, heard by a thread in the background.

The seam for new providers: anything with `name`, `poll_seconds`, `look` and `close`. Hearing nothing is no
proof that nothing was said, so notices only add saves and never replace any.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Protocol

log = logging.getLogger("holdfast")
# Never answered so often: this machine has no such service.
GIVE_UP_AFTER = 3
CLOSE_SECONDS = 5.0


@dataclass(frozen=True)
class Notice:
    """`stops`: the machine will be taken away, at `at` (seconds since 1970) if that was said.

    Otherwise it is only more likely than usual, and a checkpoint is worth having.
    """

    source: str
    what: str
    stops: bool
    at: float | None = None

    def __str__(self) -> str:
        return f"{self.source}: {self.what}"


class NoticeSource(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def poll_seconds(self) -> float:
        """The pause between two looks."""
        ...

    def look(self) -> Notice | None:
        """What is announced now. May wait a few seconds; raises OSError or ValueError without an answer."""
        ...

    def close(self) -> None:
        """Break off a look that waits, from another thread. Looks after that raise."""
        ...


class NoticePoller:
    """Asks one source again and again. `newest` is for the training thread: one attribute, no lock."""

    def __init__(self, source: NoticeSource, *, expected: bool) -> None:
        self.newest: Notice | None = None
        self._source = source
        self._expected = expected
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-notices", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._source.close()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        unanswered, answered_once = 0, False
        while not self._ended.is_set():
            try:
                notice = self._source.look()
            except Exception as error:  # noqa: BLE001  foreign code, in a thread that nobody waits for
                unanswered += 1
                if unanswered == GIVE_UP_AFTER and not self._ended.is_set():
                    self._tell_silence(error, answered_once)
                    if not answered_once:
                        return
            else:
                unanswered, answered_once = 0, True
                self._hear(notice)
            self._ended.wait(self._source.poll_seconds)

    def _hear(self, notice: Notice | None) -> None:
        # What has been announced stays announced: an answer that comes back empty is more likely a hiccup.
        if notice is None or notice == self.newest or (self.newest is not None and self.newest.stops):
            return
        self.newest = notice
        log.warning("holdfast: %s", notice)

    def _tell_silence(self, error: Exception, answered_once: bool) -> None:
        level = logging.WARNING if self._expected or answered_once else logging.DEBUG
        log.log(
            level, "holdfast: no answer about the end of this machine from %s: %s", self._source.name, error
        )
