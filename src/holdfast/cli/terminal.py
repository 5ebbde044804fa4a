"""Text for people: cleaned of anything that could steer a terminal, laid out in columns.

Names, reasons and error texts come from files that somebody else may have written. Nothing of theirs may
reach a terminal except through `clean`.
"""

from __future__ import annotations

import re
import shutil
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime

from holdfast.units import format_seconds

# Whole sequences first, so that "\x1b[31m" leaves no "[31m" behind: CSI, then OSC and the other strings.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
# Control, format (bidirectional overrides, zero width), surrogates, private use, line and paragraph ends.
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
NEVER = "-"


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


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[int] = ()) -> list[str]:
    """Lines of a table. Columns are flush right, those in `left` flush left; the last one is cut to fit."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [
            cell.ljust(space) if i in left else cell.rjust(space)
            for i, (cell, space) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(shorten("  ".join(cells).rstrip(), width()))
    return lines


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
