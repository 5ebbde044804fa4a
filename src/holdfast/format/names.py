"""The names holdfast gives to checkpoints and files: made from integers and hex, never from user text.

A name that does not parse exactly is somebody else's, and is never opened, never removed.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from holdfast.errors import InternalError

MAX_WRITER_EPOCH = 10**8 - 1
MAX_STEP = 10**12 - 1
# The commit record, its second copy, the one that is about to be it, and what is left of a retired one.
MANIFEST, SECOND, PART, DEAD = "MANIFEST", "MANIFEST.2", "MANIFEST.part", "MANIFEST.dead"
RECORDS = frozenset({MANIFEST, SECOND, PART, DEAD})
# A file of a committed checkpoint that is being written: see stores/parts.py.
PART_FILE = "part-"
# re.ASCII and fullmatch on purpose: \d accepts other scripts' digits and "$" accepts a trailing newline.
_CHECKPOINT = re.compile(r"e([0-9]{8})-s([0-9]{12})-([0-9a-f]{8})", re.ASCII)
_NONCE = re.compile(r"[0-9a-f]{8}", re.ASCII)
_FILE = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}", re.ASCII)


@dataclass(frozen=True, order=True)
class CheckpointName:
    """Where a checkpoint stands in history. Sorts by writer epoch, then step: never by time.

    >>> str(CheckpointName(7, 12000, "0badcafe"))
    'e00000007-s000000012000-0badcafe'
    """

    writer_epoch: int
    step: int
    nonce: str

    def __post_init__(self) -> None:
        if not 0 <= self.writer_epoch <= MAX_WRITER_EPOCH or not 0 <= self.step <= MAX_STEP:
            raise InternalError(f"epoch {self.writer_epoch}, step {self.step} do not fit a checkpoint name")
        if _NONCE.fullmatch(self.nonce) is None:
            raise InternalError(f"nonce {self.nonce!r} is not 8 hex characters")

    def __str__(self) -> str:
        return f"e{self.writer_epoch:08d}-s{self.step:012d}-{self.nonce}"


def parse_checkpoint_name(text: str) -> CheckpointName | None:
    """The name, or None if `text` is not exactly one of ours."""
    match = _CHECKPOINT.fullmatch(text)
    return CheckpointName(int(match[1]), int(match[2]), match[3]) if match else None


def is_file_name(text: str) -> bool:
    """Whether `text` may name a data file: one path component that cannot leave its directory.

    Upper case is left to the store's own records (MANIFEST, STORE.json), so data can never replace them.
    """
    return _FILE.fullmatch(text) is not None


def of_rank(file: str, rank: int) -> str:
    """The name of a rank's own file, where several ranks write one checkpoint.

    >>> of_rank("state.safetensors", 3)
    'state-r00003.safetensors'
    """
    stem, dot, suffix = file.rpartition(".")
    return f"{stem}-r{rank:05d}{dot}{suffix}"


def is_of_rank(file: str, rank: int) -> bool:
    """Whether `of_rank` made this name."""
    return file.rpartition(".")[0].endswith(f"-r{rank:05d}")


def is_held_name(file: str) -> bool:
    """Whether `file` may be asked for: a data file, and not one that is still being written."""
    return is_file_name(file) and not file.startswith(PART_FILE)


def is_committed(inside: Collection[str]) -> bool:
    """Whether these names, all that one checkpoint has, make it a committed one."""
    return MANIFEST in inside and DEAD not in inside
