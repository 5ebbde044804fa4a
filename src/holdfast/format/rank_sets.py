"""A set of ranks in a few characters: "0-3", "0-1016:8", "0,5,6". Groups and meshes are regular, and their
ranks are named in the record of every tensor."""

from __future__ import annotations

import re
from collections.abc import Iterable

from holdfast.errors import CorruptCheckpoint

MAX_RANK = 10**6
_RUN = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", re.ASCII)


def spell_ranks(ranks: Iterable[int]) -> str:
    """One spelling for each set, so that equal sets are equal as text."""
    left = sorted(set(ranks))
    runs: list[str] = []
    while left:
        count = _regular(left)
        first, last = left[0], left[count - 1]
        step = 1 if count == 1 else left[1] - first
        runs.append(
            str(first) if count == 1 else f"{first}-{last}" if step == 1 else f"{first}-{last}:{step}"
        )
        left = left[count:]
    return ",".join(runs)


def parse_ranks(text: object) -> tuple[int, ...]:
    """Ascending. CorruptCheckpoint for anything that `spell_ranks` would not say."""
    found: list[int] = []
    if isinstance(text, str) and len(text) <= 1 << 16:
        for run in text.split(","):
            match = _RUN.fullmatch(run)
            if match is None:
                break
            first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
            # Ascending, so that no text makes more of them than there can be.
            if last > MAX_RANK or step < 1 or (found and first <= found[-1]):
                break
            found += range(first, last + 1, step)
        else:
            if spell_ranks(found) == text:
                return tuple(found)
    raise CorruptCheckpoint(f"{str(text)[:40]!r} names no ranks")


def _regular(ranks: list[int]) -> int:
    """How many ranks from the first on lie at equal distances; a run of two is only one where it is dense."""
    if len(ranks) < 2:
        return 1
    step, count = ranks[1] - ranks[0], 2
    while count < len(ranks) and ranks[count] - ranks[count - 1] == step:
        count += 1
    return count if count > 2 or step == 1 else 1
