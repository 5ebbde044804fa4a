"""What training was handed, written down as it happens: one small record per batch in the run's folder.

A record is in the kernel's hands before its batch is in training's, so a killed process leaves no batch
unrecorded. The log only grows; nothing here rewrites or removes a byte of it.
"""

from __future__ import annotations

import json
import os
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.data.seeding import index_seed
from holdfast.errors import CorruptCheckpoint, StoreError

FOLDER = "audit"
_MAGIC = b"HOLDFAST DATA 1\n"
_FRAME = struct.Struct("<II")  # length of what follows, its CRC-32
_BATCH = struct.Struct(
    "<BBHIIIQQQ"
)  # kind, index width, feed, epoch, passes, padding, served, consumed, step
_JSON, _HANDED, _ENDED = 0, 1, 2
_WIDTHS: tuple[tuple[int, Any], ...] = ((1 << 8, "<u1"), (1 << 16, "<u2"), (1 << 32, "<u4"), (1 << 64, "<u8"))


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One batch as a feed handed it out or, with `ended`, the end of a pass.

    `served` counts all batches of this feed since the run began, as the surviving history has it: a restored
    feed counts on from its checkpoint, so what an earlier attempt served from that number on was undone.
    The last `padding` of `indices` are repeats that only fill up the batch. `size` is the length of the whole
    order; `once_each` promises every index of range(size) once, short of a rest left out if `may_drop`.
    """

    feed: str
    served: int
    epoch: int
    passes: int
    consumed: int
    indices: Sequence[Any] | npt.NDArray[Any] = ()
    padding: int = 0
    ended: bool = False
    size: int | None = None
    once_each: bool = False
    may_drop: bool = False
    step: int = 0
    again: int = 0  # so many batches the attempt before had fetched ahead and not trained on: they come again
    # Its checkpoint was made before anybody could tell whether batches had been fetched ahead.
    unsure: bool = False


class AuditLog:
    """The log of one rank in one attempt (one start of the run). Pass it as a feed's `audit`.

    `attempt` must grow with every start; `start_step` is the step that the attempt was restored at, and
    `step()` how many steps are complete now.
    """

    def __init__(
        self,
        run: Path,
        *,
        attempt: int,
        start_step: int,
        step: Callable[[], int],
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._path = Path(run) / FOLDER / f"{attempt:06d}.{rank:05d}.log"
        self._step = step
        self._feeds: dict[tuple[Any, ...], int] = {}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file: int | None = os.open(
                self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644
            )
        except OSError as error:
            raise StoreError(
                f"cannot begin the data audit {self._path}: {error.strerror}",
                hint="give the run's folder write permission and room, or leave audit_data off",
            ) from error
        head = {"attempt": attempt, "rank": rank, "world": world, "start_step": start_step}
        self._append(_MAGIC + _framed(bytes([_JSON]) + json.dumps(head).encode()))

    def __call__(self, record: AuditRecord) -> None:
        feed: tuple[Any, ...] = (record.feed, record.size, record.once_each, record.may_drop)
        feed += (record.again, record.unsure) if record.again or record.unsure else ()
        number = self._feeds.get(feed)
        if number is None:
            number = self._feeds[feed] = len(self._feeds)
            names = ("feed", "size", "once_each", "may_drop", "again", "unsure")
            self._append(_framed(bytes([_JSON]) + json.dumps(dict(zip(names, feed, strict=False))).encode()))
        indices = _as_numbers(record.indices)
        head = _BATCH.pack(
            _ENDED if record.ended else _HANDED, indices.itemsize, number, record.epoch, record.passes,
            record.padding, record.served, record.consumed, self._step(),
        )  # fmt: skip
        self._append(_framed(head + indices.tobytes()))

    def sync(self) -> None:
        """Make everything so far survive a power cut. The page cache alone survives a killed process."""
        if self._file is not None:
            os.fsync(self._file)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            whole = os.write(self._file, data) == len(data)
            why = "no room"
        except OSError as error:
            whole, why = False, str(error.strerror)
        if not whole:
            self.close()
            # An audit that cannot be written must not end the training that it watches.
            warnings.warn(f"the data audit {self._path} ends here, incomplete: {why}", stacklevel=3)


def _framed(payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _as_numbers(indices: Sequence[Any] | npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Indices in the narrowest type; keys that are not numbers as a 64-bit stand-in."""
    try:
        numbers = np.array(indices, dtype=np.uint64)
        if numbers.ndim != 1:
            raise ValueError("keys that are sequences")
    except (TypeError, ValueError, OverflowError):
        numbers = np.array([index_seed(0, i) for i in indices], dtype=np.uint64)
    top = int(numbers.max()) if len(numbers) else 0
    return numbers.astype(next(kind for limit, kind in _WIDTHS if top < limit))


@dataclass(frozen=True)
class AttemptLog:
    """One log file, read back."""

    path: Path
    attempt: int
    rank: int
    world: int
    start_step: int
    records: list[AuditRecord]


def read_log(path: Path) -> AttemptLog | None:
    """A log file, or None if the process died before its first lines were whole. A torn last record is what a
    crash leaves; anything else that does not check is CorruptCheckpoint."""
    data = path.read_bytes()
    frames = list(_frames(data, path))
    if not frames:
        return None
    head = json.loads(frames[0][1:])
    feeds: list[dict[str, Any]] = []
    records = []
    for payload in frames[1:]:
        if payload[0] == _JSON:
            feeds.append(json.loads(payload[1:]))
            continue
        kind, width, feed, epoch, passes, padding, served, consumed, step = _BATCH.unpack_from(payload)
        indices = np.frombuffer(payload, dtype=f"<u{width}", offset=_BATCH.size)
        rest = {"served": served, "epoch": epoch, "passes": passes, "consumed": consumed, "padding": padding}
        declared = feeds[feed]
        records.append(AuditRecord(**declared, **rest, indices=indices, ended=kind == _ENDED, step=step))
    return AttemptLog(path, head["attempt"], head["rank"], head["world"], head["start_step"], records)


def _frames(data: bytes, path: Path) -> Iterator[bytes]:
    if not data.startswith(_MAGIC):
        if _MAGIC.startswith(data):
            return
        raise CorruptCheckpoint(f"{path} is not a data audit of this version of holdfast")
    at = len(_MAGIC)
    while at + _FRAME.size <= len(data):
        length, check = _FRAME.unpack_from(data, at)
        payload = data[at + _FRAME.size : at + _FRAME.size + length]
        if len(payload) < length:
            return
        if zlib.crc32(payload) != check:
            raise CorruptCheckpoint(f"{path} is damaged at byte {at}")
        at += _FRAME.size + length
        yield payload
