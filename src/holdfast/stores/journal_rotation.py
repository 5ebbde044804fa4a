"""A journal that has grown is made small again: what was routine long ago goes, the run's story stays.

    events.jsonl        what happens now
    events.old.jsonl    the story before that, and the last of its routine

Whoever is killed in the middle leaves events.turning.jsonl, which is read as well and taken up the next time.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence

from holdfast.stores.durable_write import write_small
from holdfast.stores.io import StoreIO
from holdfast.stores.stored_file import open_written

FILE, OLD, TURNING = "events.jsonl", "events.old.jsonl", "events.turning.jsonl"
# A month of a save every few seconds writes some hundred megabytes in all; of them at most this much is kept.
MOST_BYTES = 4 << 20
_ROUTINE_BYTES, _STORY_BYTES = 1 << 20, 3 << 20
# What is there may come from a version that kept all of it, or from somebody who is no friend.
_READ_BYTES = 2 * MOST_BYTES
_ROUTINE = re.compile(
    rb'\{"event":"(Progress|SaveDecided|SnapshotTaken|SaveCommitted|Pruned|Flushed|FlushSkipped'
    rb'|CheckpointProtected|OutputCommitted)"'
)


def rotate(io: StoreIO, root: int) -> None:
    """Move what the journal says into the old one, condensed. Raises OSError; only history is at stake."""
    with contextlib.suppress(FileExistsError):
        io.rename(root, FILE, TURNING)
    lines = condensed(_lines(io, root, (OLD, TURNING)))
    part = f"{OLD}.{os.urandom(4).hex()}.part"
    write_small(io, root, part, b"\n".join([*lines, b""]))
    if io.kind(root, OLD) is not None:
        io.unlink(root, OLD)
    io.rename(root, part, OLD)
    io.unlink(root, TURNING)


def condensed(lines: Sequence[bytes]) -> list[bytes]:
    """The newest of the story and the newest of the routine, each as far as there is room, in their order. A
    routine line right before one of the story tells when something ended: it is part of it."""
    kept: list[bytes] = []
    room = {True: _ROUTINE_BYTES, False: _STORY_BYTES}
    story_follows = False
    for line in reversed(lines):
        is_routine = _ROUTINE.match(line) is not None
        counts_as_routine = is_routine and not story_follows
        story_follows = not is_routine
        if line and room[counts_as_routine] >= len(line):
            room[counts_as_routine] -= len(line) + 1
            kept.append(line)
    return kept[::-1]


def all_lines(io: StoreIO, root: int) -> list[bytes]:
    return _lines(io, root, (OLD, TURNING, FILE))


def size_now(io: StoreIO, root: int) -> int:
    try:
        file = open_written(io, root, FILE)
    except FileNotFoundError:
        return 0
    try:
        return io.size(file)
    finally:
        io.close(file)


def _lines(io: StoreIO, root: int, names: Sequence[str]) -> list[bytes]:
    lines: list[bytes] = []
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            new = _tail(io, root, name).split(b"\n")
            # Killed between two steps of turning, the same lines are in two files.
            known = set(lines) if name == TURNING else frozenset[bytes]()
            lines += [line for line in new if line not in known]
    return lines


def _tail(io: StoreIO, root: int, name: str) -> bytes:
    """The end of a file, from the beginning of a line."""
    file = open_written(io, root, name)
    try:
        size = io.size(file)
        data = bytearray(min(size, _READ_BYTES))
        done = 0
        while done < len(data):
            got = io.read_at(file, memoryview(data)[done:], size - len(data) + done)
            if got == 0:
                break
            done += got
    finally:
        io.close(file)
    whole = bytes(data[:done])
    return whole if size <= _READ_BYTES else whole.partition(b"\n")[2]
