"""A foreign loader that can be opened at a position, told apart from all others by one method.

This is the whole adapter: everything else a feed does (positions, restarts, audits) then works for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class Positioned:
    """Wraps a function that opens a foreign loader at a position, for `run.batches`.

    `open_at(epoch, batch)` returns an iterable over this rank's batches of `epoch`, beginning with number
    `batch`; it must give the same batches for the same arguments in every process. `batches` is how many an
    epoch has, if that is known::

        def open_at(epoch, batch):
            return MyLoader(files, seed=epoch, skip=batch)

        for data in run.batches(holdfast.data.Positioned(open_at, batches=1000)): ...
    """

    def __init__(self, open_at: Callable[[int, int], Iterable[Any]], *, batches: int | None = None) -> None:
        self.open_at = open_at
        self.batches = batches
