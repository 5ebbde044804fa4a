"""HALT: a note in a run's folder that says "stop, and do not start again". People write it, training reads.

That the note is there is what counts; a torn one halts as well, it only cannot say why.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import CorruptCheckpoint
from holdfast.format.sealed import seal, unseal

FILE = "HALT"
# What the training says in its last heartbeat.
SAYS_HALTED = "halted"
MAX_REASON = 200
_MAX_BYTES = 64 << 10


@dataclass(frozen=True)
class HaltNote:
    """`time` is wall-clock seconds, for people."""

    reason: str = ""
    by: str = ""
    time: float = 0.0

    def __str__(self) -> str:
        return ": ".join(
            filter(None, [f"{SAYS_HALTED} by {self.by}" if self.by else SAYS_HALTED, self.reason])
        )


def write_halt(folder: str | os.PathLike[str], note: HaltNote) -> None:
    """Durable when it returns. A newer note replaces an older one. Raises OSError."""
    home = Path(folder)
    part = home / f".{FILE}.{os.urandom(4).hex()}.part"
    data = seal({"format": 1, "reason": note.reason[:MAX_REASON], "by": note.by, "time": note.time})
    try:
        with open(part, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, home / FILE)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    _sync(home)


def read_halt(folder: str | os.PathLike[str]) -> HaltNote | None:
    """The note, or None. Raises OSError if that cannot be told."""
    path = Path(folder) / FILE
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError:
        # A link, or a file of another user: somebody put it there.
        if os.path.lexists(path):
            return HaltNote()
        raise
    try:
        said = unseal(os.read(file, _MAX_BYTES))
        return HaltNote(str(said["reason"])[:MAX_REASON], str(said["by"]), float(said["time"]))
    except (CorruptCheckpoint, KeyError, TypeError, ValueError, IsADirectoryError):
        return HaltNote()
    finally:
        os.close(file)


def clear_halt(folder: str | os.PathLike[str]) -> bool:
    """Whether there was a note. Raises OSError."""
    try:
        (Path(folder) / FILE).unlink()
    except FileNotFoundError:
        return False
    _sync(Path(folder))
    return True


def _sync(home: Path) -> None:
    directory = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
