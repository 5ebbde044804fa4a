"""What a verb returns, and the exit codes. The codes are part of the interface: never change one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

OK = 0
FAILED = 1
USAGE = 2
DAMAGED = 3
NOTHING_USABLE = 4
DIFFERENT = 5
INTERRUPTED = 130


@dataclass(frozen=True)
class Table:
    """Rows under a header. Columns are flush right, those in `left` flush left."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[int] = ()
    indent: str = ""


@dataclass(frozen=True)
class FactList:
    """Names with a text each; one without a text is left out."""

    pairs: Sequence[tuple[str, str]]


Block = str | Table | FactList


@dataclass(frozen=True)
class Result:
    """`json` has field names that stay; `text` is for people, and only read if they want it.

    `notes` go to standard error, whoever reads.
    """

    json: Any = None
    text: Iterable[Block] = ()
    code: int = OK
    notes: Sequence[str] = ()


def of_checked(are_whole: Iterable[bool]) -> int:
    """The exit code for a set of checkpoints: all whole, some whole, none whole (or none there)."""
    verdicts = list(are_whole)
    if not any(verdicts):
        return NOTHING_USABLE
    return OK if all(verdicts) else DAMAGED
