"""A connection that never keeps its caller: a thread at its end does the talking."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from holdfast.errors import StoreUnavailable
from holdfast.ranks.store import RankStore

T = TypeVar("T")
# What an answer may take on top of its limit, on a machine that is busy.
SLICE_SECONDS = 1.0
CLOSE_SECONDS = 5.0


class Line:
    """A store that fell silent (its machine is gone, its process is stopped) answers no call and breaks no
    connection. Then a thread waits here for as long as that takes, and the callers go on with an error."""

    def __init__(self, store: RankStore) -> None:
        self._store = store
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[RankStore], Any]] | None]
        self._calls = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def ask(self, what: Callable[[RankStore], T], limit: float) -> T:
        """`what(store)`, or `StoreUnavailable` after `limit` and one slice. What was not begun by then is
        never done; what was begun may still happen."""
        answer = self.tell(what)
        try:
            return answer.result(limit + SLICE_SECONDS)
        except TimeoutError as error:
            answer.cancel()
            raise StoreUnavailable(
                f"the ranks' store gave no answer within {limit + SLICE_SECONDS:g} s",
                hint="the process or the machine that hosts it has stopped or cannot be reached",
            ) from error

    def tell(self, what: Callable[[RankStore], T]) -> Future[T]:
        """The same without waiting, after whatever was asked before."""
        if self._closed:
            raise StoreUnavailable("the connection to the other ranks is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._talk, name="holdfast-ranks-line", daemon=True)
            self._thread.start()
        answer: Future[T] = Future()
        self._calls.put((answer, what))
        return answer

    def close(self) -> None:
        """Waits for a call that is under way, but not for one that a silent store keeps."""
        self._closed = True
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join(CLOSE_SECONDS)

    def _talk(self) -> None:
        while (call := self._calls.get()) is not None:
            answer, what = call
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(what(self._store))
            except BaseException as error:  # noqa: BLE001  it belongs to whoever asked
                answer.set_exception(error)
