"""What the command line answers to scripts. These numbers are part of the interface: never change one."""

from __future__ import annotations

from collections.abc import Iterable

OK = 0
FAILED = 1
USAGE = 2
DAMAGED = 3
NOTHING_USABLE = 4
DIFFERENT = 5
INTERRUPTED = 130


def of_checked(are_whole: Iterable[bool]) -> int:
    """The answer for a set of checkpoints: all whole, some whole, none whole (or none there)."""
    verdicts = list(are_whole)
    if not any(verdicts):
        return NOTHING_USABLE
    return OK if all(verdicts) else DAMAGED
