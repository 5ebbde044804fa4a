"""What a keeper does for the others once no worker runs any more. In the background: it must stay audible."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.keeper.world import Card


class Chores:
    def __init__(self, me: Card, token: bytes, environ: Mapping[str, str], done: Callable[[], None]) -> None:
        self._results: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def do(self, message: dict[str, Any]) -> None: ...

    def finished(self) -> list[dict[str, Any]]:
        return []

    def newest_here(self, run: str | None, node: str | None) -> str | None:
        return None

    def forget(self) -> None: ...

    def close(self) -> None: ...
