"""Prints results: as JSON, as tables or as facts; and one live line while work goes on.

Names, reasons and error texts come from files that somebody else may have written. Nothing of theirs reaches
a terminal except through `clean`. Piped text is never cut; on a terminal, tables are cut to its width.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import sys
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from holdfast.cli.result import Block, FactList, Result
from holdfast.clock import Clock, SystemClock
from holdfast.units import format_bytes, format_seconds

# Whole sequences first, so that "\x1b[31m" leaves no "[31m" over: CSI, then OSC and the other strings.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
# Control, format (bidirectional overrides, zero width), surrogates, private use, line and paragraph ends.
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_REDRAW_SECONDS = 0.1
_BAR = 24
NEVER = "-"


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def show(result: Result, *, as_json: bool) -> int:
    """Print a result. Returns its exit code."""
    for note in result.notes:
        print(clean(note), file=sys.stderr)
    if as_json:
        if result.json is not None:
            print_json(result.json)
    else:
        limit = width() if sys.stdout.isatty() else None
        for block in result.text:
            print("\n".join(lines_of(block, limit)))
    return result.code


def lines_of(block: Block, limit: int | None = None) -> list[str]:
    """A block as harmless lines. Those of a table have at most `limit` characters."""
    if isinstance(block, FactList):
        return [f"{clean(name):<11} {clean(text)}" for name, text in block.pairs if text]
    if isinstance(block, str):
        return [clean(block)]
    rows = [[clean(cell) for cell in row] for row in (block.header, *block.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows if any(block.header) else rows[1:]:
        cells = [
            cell.ljust(space) if i in block.left else cell.rjust(space)
            for i, (cell, space) in enumerate(zip(row, widths, strict=True))
        ]
        line = (block.indent + "  ".join(cells)).rstrip()
        lines.append(line if limit is None else shorten(line, limit))
    return lines


def print_json(value: Any) -> None:
    # ASCII only: escapes that steer a terminal come out as \u001b.
    print(json.dumps(plain(value), indent=2, ensure_ascii=True, allow_nan=False))


def plain(value: Any) -> Any:
    """What JSON can hold. NaN and infinities, which it cannot, become the strings "nan", "inf", "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def clean(text: object, limit: int | None = None) -> str:
    """One harmless line. Control sequences go, other unprintable characters become "?"."""
    plain = _ESCAPES.sub("", str(text)).replace("\n", " ").replace("\t", " ")
    if not plain.isascii() or not plain.isprintable():
        plain = "".join("?" if unicodedata.category(c) in _UNSEEN else c for c in plain)
    return shorten(plain, limit) if limit is not None else plain


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(limit - 1, 0)] + "…"


def width() -> int:
    return max(shutil.get_terminal_size((80, 24)).columns, 40)


def when(created: str | None) -> str:
    """A manifest's time in the reader's own time zone; whatever is not a time is shown as it stands."""
    try:
        moment = datetime.fromisoformat(created or "")
    except ValueError:
        return clean(created or NEVER, 19)
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def age(created: str | None, now: float) -> str | None:
    """ "3 min 20 s ago", or None where the time cannot be read or lies ahead (clocks differ)."""
    try:
        seconds = now - datetime.fromisoformat(created or "").astimezone(UTC).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return f"{format_seconds(round(seconds))} ago" if seconds >= 0.5 else None


def plural(count: int, word: str) -> str:
    ending = "" if count == 1 else ("es" if word.endswith(("s", "ch")) else "s")
    return f"{count:,} {word}{ending}"


class LiveLine:
    """One line on standard error that is drawn over itself; unless told, only where there is a terminal."""

    def __init__(self, stream: TextIO | None = None, *, live: bool | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._live = self._stream.isatty() if live is None else live

    def show(self, text: str) -> None:
        if self._live:
            self._stream.write("\r\x1b[2K" + shorten(clean(text), width() - 1))
            self._stream.flush()

    def clear(self) -> None:
        self.show("")


class ProgressBar:
    """Bytes done of bytes in total. Never leaves anything on the screen.

    >>> with ProgressBar("verifying", total) as bar:
    ...     bar.add(1 << 20)
    """

    def __init__(
        self, label: str, total: int, *, stream: TextIO | None = None, clock: Clock | None = None
    ) -> None:
        self._label, self._total, self._done = label, total, 0
        self._line = LiveLine(stream)
        self._clock = clock or SystemClock()
        self._started = self._drawn_at = self._clock.monotonic()

    def add(self, count: int) -> None:
        self._done += count
        now = self._clock.monotonic()
        if now - self._drawn_at >= _REDRAW_SECONDS:
            self._drawn_at = now
            self._line.show(self._text(now))

    def _text(self, now: float) -> str:
        share = min(self._done / self._total, 1.0) if self._total else 1.0
        speed = self._done / max(now - self._started, 1e-9)
        left = (self._total - self._done) / speed if speed > 0 else 0.0
        return (
            f"{self._label} [{'#' * round(share * _BAR):.<{_BAR}}] {share:4.0%}"
            f"  {format_bytes(self._done)} of {format_bytes(self._total)}"
            f"  {format_bytes(speed)}/s  {format_seconds(max(left, 0.0))} left"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.clear()
