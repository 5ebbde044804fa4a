"""A loader that was opened: one batch after the other, and past one that could not be loaded.

Classes and not generators: an error ends a generator, and a loop that catches it would take that for the
end of the epoch. torch's own iterators go on behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.data.split import Turn
from holdfast.data.torch_plain_fetch import Loaded
from holdfast.data.torch_rebuild import Requests


class InProcess:
    def __init__(self, requests: Iterator[Any], load: Callable[[Any], Any], asked: deque[Turn]) -> None:
        self._requests = requests
        self._load = load
        self._asked = asked
        self.failed: Turn | None = None

    def __iter__(self) -> Iterator[tuple[Turn, Any]]:
        return self

    def __next__(self) -> tuple[Turn, Any]:
        self.failed = None
        request = next(self._requests)
        turn = self._asked.popleft()
        self.failed = turn
        batch = self._load(request)
        self.failed = None
        return turn, batch


class FromWorkers:
    """`heard(number, states)` is told where a worker's streams stood behind the batch that is handed out."""

    def __init__(
        self,
        loaded: Iterator[Any],
        asked: deque[Turn],
        requests: Requests,
        heard: Callable[[int, Any], None] | None = None,
    ) -> None:
        self._loaded = loaded
        self._asked = asked
        self._heard = heard
        self._requests = requests
        self._begin = requests.begin
        self._number = -1
        self.failed: Turn | None = None

    def __iter__(self) -> Iterator[tuple[Turn, Any]]:
        return self

    def __next__(self) -> tuple[Turn, Any]:
        self.failed = None
        while True:
            try:
                loaded = next(self._loaded)
            except StopIteration:
                self._over()
                raise
            except Exception:
                self._number += 1
                self.failed = self._asked.popleft() if self._asked else None
                raise
            self._number += 1
            if type(loaded) is not Loaded:
                return self._asked.popleft(), loaded
            if loaded.states is not None and self._heard is not None:
                self._heard(self._number, loaded.states)
            if not loaded.skipped:
                return self._asked.popleft(), loaded.batch

    def _over(self) -> None:
        if self._requests.begin is self._begin:  # and not that of a later pass
            self._requests.begin = None

    def __del__(self) -> None:
        self._over()
