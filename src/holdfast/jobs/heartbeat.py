"""The training's sign of life: one small record in one small file, rewritten at step boundaries.

The supervisor names the file in an environment variable and reads it; the training only writes. Nothing here
may fail or slow training: at most one write a second, and a file that cannot be written is forgotten.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, get_args

# A path on this node, in memory where possible; set by `holdfast run` for its child.
VARIABLE = "HOLDFAST_HEARTBEAT"
SECONDS_BETWEEN = 1.0
# One fixed size: a reader then never sees the tail of an older, longer record.
RECORD_BYTES = 8192
# Every character of it and of the folder's name may take twelve bytes as JSON.
MAX_REASON = 200

Phase = Literal["training", "finishing", "finished", "stopped", "failed"]


@dataclass(frozen=True)
class Beat:
    """What the training last said. Any difference to the record before is a sign of life."""

    count: int
    pid: int
    run: str
    step: int
    phase: Phase
    why: str = ""
    resumed_from: str | None = None


class HeartbeatWriter:
    """Belongs to one run in one process; a forked child's copy stays silent."""

    def __init__(self, path: str | None, run: str) -> None:
        self._run = os.path.abspath(run)
        self._pid = os.getpid()
        self._count = 0
        self.resumed_from: str | None = None
        self._due = 0.0
        self._file = _open(path)

    @staticmethod
    def from_environment(run: str, environ: Mapping[str, str] | None = None) -> HeartbeatWriter:
        return HeartbeatWriter((os.environ if environ is None else environ).get(VARIABLE), run)

    @property
    def is_watched(self) -> bool:
        return self._file is not None

    def beat(self, now: float, step: int) -> None:
        """At a step boundary. `now` is monotonic; cheap when called more than once a second."""
        if now >= self._due and self._file is not None:
            self._due = now + SECONDS_BETWEEN
            self._write(step, "training", "")

    def say(self, step: int, phase: Phase, why: str = "") -> None:
        """A change of phase: written at once."""
        if self._file is not None:
            self._write(step, phase, why[:MAX_REASON])

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None and os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                os.close(file)

    def _write(self, step: int, phase: Phase, why: str) -> None:
        if self._file is None or os.getpid() != self._pid:
            return
        self._count += 1
        beat = Beat(self._count, self._pid, self._run, step, phase, why, self.resumed_from)
        record = json.dumps(asdict(beat)).encode("ascii").ljust(RECORD_BYTES)
        try:
            if len(record) > RECORD_BYTES:
                raise OSError(errno.ENAMETOOLONG, "the folder's name is too long for a heartbeat")
            os.pwrite(self._file, record, 0)
        except OSError:
            self.close()


def read_beat(path: str) -> Beat | None:
    """The newest record; None if there is none yet or it is being written this moment."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            raw = json.loads(file.read(RECORD_BYTES))
        beat = Beat(**raw)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    whole = isinstance(beat.count, int) and isinstance(beat.step, int) and isinstance(beat.run, str)
    return beat if whole and beat.phase in get_args(Phase) else None


def _open(path: str | None) -> int | None:
    if not path:
        return None
    try:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
