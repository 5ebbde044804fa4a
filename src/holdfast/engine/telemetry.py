"""Events on their way to the run's journal: the training thread appends to a list, the background writes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from holdfast.events import Event


class Telemetry:
    def __init__(self, append: Callable[[Event], None]) -> None:
        self._append = append
        self._waiting: deque[Event] = deque(maxlen=10_000)
        self._writing = threading.Lock()

    def emit(self, event: Event) -> None:
        self._waiting.append(event)

    def flush(self) -> None:
        with self._writing:
            while self._waiting:
                self._append(self._waiting.popleft())
