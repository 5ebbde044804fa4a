"""A line on the terminal that grows while something unavoidable takes long. Silent where nobody looks."""

from __future__ import annotations

import sys

_WIDTH = 30
_EVERY = 50  # counts between two redraws


class Progress:
    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._count = 0
        self._shown = sys.stderr is not None and sys.stderr.isatty()

    def one_more(self) -> None:
        self._count += 1
        if self._count % _EVERY == 0 or self._count == self._total:
            self._draw()

    def _draw(self) -> None:
        if self._shown:
            full = _WIDTH * self._count // max(1, self._total)
            bar = "#" * full + "." * (_WIDTH - full)
            end = "\n" if self._count == self._total else ""
            sys.stderr.write(f"\r{self._what} [{bar}] {self._count}/{self._total}{end}")
            sys.stderr.flush()
