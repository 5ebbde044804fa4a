"""A bar on standard error while something long runs; silent where nobody is watching."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self, TextIO

from holdfast.cli.terminal import shorten, width
from holdfast.clock import Clock, SystemClock
from holdfast.units import format_bytes, format_seconds

_REDRAW_SECONDS = 0.1
_BAR = 24


class ProgressBar:
    """Bytes done of bytes in total. Never leaves anything on the screen.

    >>> with ProgressBar("verifying", total) as bar:
    ...     bar.add(1 << 20)
    """

    def __init__(
        self, label: str, total: int, *, stream: TextIO | None = None, clock: Clock | None = None
    ) -> None:
        self._label = label
        self._total = total
        self._done = 0
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock or SystemClock()
        self._shown = self._stream.isatty()
        self._started = self._clock.monotonic()
        self._drawn_at = self._started

    def add(self, count: int) -> None:
        self._done += count
        now = self._clock.monotonic()
        if self._shown and now - self._drawn_at >= _REDRAW_SECONDS:
            self._drawn_at = now
            self._stream.write("\r\x1b[2K" + shorten(self.line(now), width() - 1))
            self._stream.flush()

    def line(self, now: float) -> str:
        share = min(self._done / self._total, 1.0) if self._total else 1.0
        speed = self._done / max(now - self._started, 1e-9)
        left = (self._total - self._done) / speed if speed > 0 else 0.0
        filled = round(share * _BAR)
        return (
            f"{self._label} [{'#' * filled}{'.' * (_BAR - filled)}] {share:4.0%}"
            f"  {format_bytes(self._done)} of {format_bytes(self._total)}"
            f"  {format_bytes(speed)}/s  {format_seconds(max(left, 0.0))} left"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()
