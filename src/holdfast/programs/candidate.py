"""A copy of files that may be a whole checkpoint. Kept beside the generations under the program's own names,
for a person; it becomes a generation when what the program does next shows that it was whole."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from pathlib import Path

from holdfast.checkpoints.file_image import FileImage
from holdfast.errors import CorruptCheckpoint, SaveError, TornSnapshot
from holdfast.format.sealed import seal, unseal
from holdfast.programs.proof import Signs

FOLDER = "candidate"
# Closed, and unchanged for so long: longer than a program pauses in the middle of a checkpoint.
REST_SECONDS = 60.0
_BLOCK = 16 << 20


class Candidate:
    """The one candidate of an attempt. `run` is the run's folder, `folder` the program's."""

    def __init__(self, run: Path, folder: Path) -> None:
        self._place = run / FOLDER
        self._folder = folder
        self.signs: Signs = {}
        self._taken = 0.0
        # The program was seen to go on where it had closed its file: then closing says nothing.
        self._closes_early = False

    @property
    def where(self) -> Path:
        return self._place

    def take(self, signs: Signs, now: float) -> None:
        """TornSnapshot if one of them changes meanwhile; then the one before stays."""
        part = self._place.with_name(FOLDER + ".part")
        try:
            shutil.rmtree(part, ignore_errors=True)
            for name in signs:
                _copy(self._folder / name, part / name, signs, name)
            shutil.rmtree(self._place, ignore_errors=True)
            os.replace(part, self._place)
        except OSError as error:
            raise SaveError(f"cannot keep a candidate in {self._place}: {error}") from error
        self.signs, self._taken = signs, now

    def drop(self) -> None:
        self.signs = {}

    def paths(self) -> dict[str, Path]:
        return {name: self._place / name for name in self.signs}

    def was_whole(self, now_there: Signs, now: float) -> str | None:
        """The sign in words, if what lies there now shows that the candidate was complete."""
        if not self.signs:
            return None
        if now_there == self.signs:
            return (
                f"closed, and at rest for {REST_SECONDS:.0f} s" if now - self._taken >= REST_SECONDS else None
            )
        changed = [name for name, sign in self.signs.items() if name in now_there and now_there[name] != sign]
        if any(self._goes_on(name, now_there[name].size) for name in changed):
            self._closes_early = True
            return None
        return None if self._closes_early else "closed, and the program has begun the next"

    def _goes_on(self, name: str, size: int) -> bool:
        """Whether the file now is the candidate with something behind it."""
        kept = self._place / name
        try:
            length = kept.stat().st_size
            if size < length:
                return False
            with open(kept, "rb") as old, open(self._folder / name, "rb") as new:
                while block := old.read(_BLOCK):
                    if new.read(len(block)) != block:
                        return False
        except OSError:
            return True  # nobody can tell, so it proves nothing
        return True


def _copy(source: Path, target: Path, signs: Signs, name: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    image = FileImage(name, source)
    try:
        if image.sign != signs[name]:
            raise TornSnapshot(f"{source} changed before it was read", hint="it is read again when it rests")
        with open(target, "wb") as out:
            for start in range(0, image.size, _BLOCK):
                out.write(image.view(start, min(start + _BLOCK, image.size)))
            out.flush()
            os.fsync(out.fileno())
        image.require_unchanged()
        os.chmod(target, image.mode)
        os.utime(target, ns=(image.sign.mtime_ns, image.sign.mtime_ns))
    finally:
        image.close()


# ---- How long before the end of its job a program is asked to stop: from how long stopping took before.

log = logging.getLogger("holdfast")
FILE = "stop-cost"
_SAFETY = 1.5
_LEAST = 4.0
# While nothing was measured: a share of the time there is, and never less than this.
_SHARE = 0.1
_UNKNOWN = 10.0


class StopCost:
    """Kept in the run's folder, because a job that was stopped has seen the only stop there was."""

    def __init__(self, run: Path) -> None:
        self._path = run / FILE
        self.seconds: float | None = None
        with contextlib.suppress(OSError, CorruptCheckpoint, KeyError, TypeError, ValueError):
            self.seconds = max(float(unseal(self._path.read_bytes())["seconds"]), 0.0)

    def measured(self, seconds: float) -> None:
        # The slower of the last two: one that was quick by chance proves little.
        slower = max(seconds, self.seconds or 0.0)
        self.seconds = seconds
        part = self._path.with_name(f".{FILE}.part")
        try:
            part.write_bytes(seal({"format": 1, "seconds": slower}))
            os.replace(part, self._path)
        except OSError as error:
            log.warning("holdfast: how long stopping took could not be written down: %s", error.strerror)

    def lead(self, seconds_at_start: float | None, longest: float) -> float:
        """Seconds before the end. `longest` is what the recipe allows at most."""
        if self.seconds is not None:
            return min(max(_SAFETY * self.seconds, _LEAST), longest)
        return min(max(_SHARE * (seconds_at_start or 0.0), _UNKNOWN), longest)
