"""Checkpoints of several files and several chunks, in directories and in shared memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from holdfast.checkpoints.find import look
from holdfast.checkpoints.write import CheckpointDraft, Committed, write_checkpoint
from holdfast.format.names import parse_checkpoint_name
from holdfast.stores.base import ImageSource, Store
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_image import MemoryImage

CHUNK = 16 << 20
UUID = "0a1b2c3d-0000-4000-8000-000000000001"
FILES = ("model.bin", "state.bin")


def content(step: int, file: str, size: int) -> bytes:
    """Bytes that depend on the step, the file and every position."""
    return np.random.default_rng([step, FILES.index(file)]).bytes(size)


def sources(step: int, sizes: Sequence[int] = (5000, 300)) -> list[ImageSource]:
    return [MemoryImage(file, content(step, file, size)) for file, size in zip(FILES, sizes, strict=True)]


def draft(step: int, writer_epoch: int = 1, **more: object) -> CheckpointDraft:
    said = {"created": "2024-01-01T00:00:00+00:00", "reason": "test", **more}
    return CheckpointDraft(writer_epoch=writer_epoch, step=step, **said)  # type: ignore[arg-type]


def save(store: Store, step: int, sizes: Sequence[int] = (5000, 300), **more: object) -> Committed:
    return write_checkpoint(store, draft(step, **more), sources(step, sizes))  # type: ignore[arg-type]


def copy_to(store: Store, other: Store, name: str) -> None:
    """The same sealed bytes in another store, by the plain verbs."""
    found = look(other, parse_checkpoint_name(name))  # type: ignore[arg-type]
    assert found.manifest is not None
    store.begin(name, 0)
    for record in found.manifest.files:
        file = other.open(name, record.name)
        data = bytearray(record.size)
        file.read_into(0, memoryview(data))
        file.close()
        store.write(name, MemoryImage(record.name, bytes(data)))
    store.publish(name, other.manifest(name))


def directory(path: Path, uuid: str = UUID) -> CheckpointStore:
    store = CheckpointStore(path, uuid=uuid)
    store.claim()
    return store


def place(store: CheckpointStore, name: str) -> Path:
    return Path(store.where) / "ckpt" / name


def flip(path: Path, at: int = 0) -> None:
    """Change one byte in place."""
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def shm_root() -> str:
    """A private root in real shared memory, for one test."""
    return f"/dev/shm/holdfast-test-{os.getpid()}-{os.urandom(4).hex()}"
