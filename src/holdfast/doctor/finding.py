"""What a check found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["problem", "warning"]


@dataclass(frozen=True)
class Finding:
    """`check` is a name that stays. A problem can cost work; a warning costs time or safety in rare cases."""

    check: str
    severity: Severity
    what: str
    fix: str


# What a check says, before its name is put to it.
Said = tuple[Severity, str, str]


def problem(what: str, fix: str) -> Said:
    return "problem", what, fix


def warning(what: str, fix: str) -> Said:
    return "warning", what, fix
