"""Every tree that a power cut may leave behind, on a file system that promises as little as POSIX does.

File data is durable only by fsync of that file, names only by fsync of their directory. Of what is not
yet durable any part may have reached the disk, in any combination; only a rename is all or nothing.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from holdfast.testing.memory_io import Tree
from holdfast.testing.recording_io import DataOp, Mark, NameOp, Op, Recording, SyncOp


@dataclass(frozen=True)
class CrashState:
    """What is on the disk if the power went after `at` operations, and what had been promised by then."""

    at: int
    tree: Tree
    promises: tuple[Mark, ...]
    # Which pending operations had made it; enough to look into a failing state.
    survived: tuple[Op, ...]


def crash_states(
    recording: Recording, *, exhaustive: int = 7, samples: int = 24, seed: int = 0
) -> Iterator[CrashState]:
    """All subsets where at most `exhaustive` operations are pending; else the telling ones and `samples`
    random ones. The same seed gives the same states."""
    chance = random.Random(seed)
    ops = list(_torn(recording.ops))
    for at in range(len(ops) + 1):
        done = ops[:at]
        durable, pending = _split(done)
        promises = tuple(op for op in done if isinstance(op, Mark))
        # What is durable of a file or directory comes before what is pending of it, so it can go first.
        base = _build(Tree(), durable)
        for chosen in _subsets(len(pending), exhaustive, samples, chance):
            survived = tuple(pending[i] for i in chosen)
            yield CrashState(at, _build(base, survived), promises, survived)


def _torn(ops: Sequence[Op]) -> Iterator[Op]:
    """A write may reach the disk in part: each counts as two."""
    for op in ops:
        if isinstance(op, DataOp) and op.verb == "write" and len(op.data) > 1:
            half = len(op.data) // 2
            yield replace(op, data=op.data[:half])
            yield replace(op, offset=op.offset + half, data=op.data[half:])
        else:
            yield op


def _split(done: Sequence[Op]) -> tuple[list[Op], list[Op]]:
    """What is certainly on disk, and what may be, each in the order it was done."""
    durable: list[Op] = []
    pending: list[Op] = []
    synced: set[tuple[int, bool]] = set()
    for op in reversed(done):
        if isinstance(op, SyncOp):
            synced.add((op.inode, op.is_directory))
        elif isinstance(op, DataOp):
            (durable if (op.inode, False) in synced else pending).append(op)
        elif isinstance(op, NameOp):
            (durable if (op.directory, True) in synced else pending).append(op)
    return durable[::-1], pending[::-1]


def _subsets(count: int, exhaustive: int, samples: int, chance: random.Random) -> Iterator[tuple[int, ...]]:
    everything = tuple(range(count))
    if count <= exhaustive:
        for size in range(count + 1):
            yield from itertools.combinations(everything, size)
        return
    yield ()
    yield everything
    for i in everything:
        yield (i,)
        yield everything[:i] + everything[i + 1 :]
        yield everything[:i]
    for _ in range(samples):
        keep = chance.random()
        yield tuple(i for i in everything if chance.random() < keep)


def _build(base: Tree, ops: Sequence[Op]) -> Tree:
    """A tree of its own: `base` with `ops` on top, sharing with it only files that no operation touches."""
    tree = Tree({inode: dict(names) for inode, names in base.directories.items()}, dict(base.files))
    for inode in {op.inode for op in ops if isinstance(op, DataOp)}:
        tree.files[inode] = bytearray(tree.files.get(inode, b""))
    for op in ops:
        if isinstance(op, NameOp):
            _apply_name(tree, op)
        elif isinstance(op, DataOp):
            _apply_data(tree, op)
    return tree


def _apply_name(tree: Tree, op: NameOp) -> None:
    # A directory may be filled before its own name is on disk; unreachable then, but it exists.
    entries = tree.directories.setdefault(op.directory, {})
    if op.verb == "make_directory":
        tree.directories.setdefault(op.inode, {})
        entries[op.name] = op.inode
    elif op.verb in ("create", "rename"):
        if op.inode not in tree.directories:  # a folder can be renamed, too
            tree.files.setdefault(op.inode, bytearray())
        entries.pop(op.old, None)
        entries[op.name] = op.inode
    elif entries.get(op.name) == op.inode:
        del entries[op.name]


def _apply_data(tree: Tree, op: DataOp) -> None:
    if op.verb == "write":
        tree.write(op.inode, op.offset, op.data)
    elif op.verb == "resize":
        tree.resize(op.inode, op.offset)
    else:
        tree.resize(op.inode, max(op.offset, len(tree.files.get(op.inode, b""))))
