"""A copy of files that may be a whole checkpoint. Kept beside the generations under the program's own names,
for a person; it becomes a generation when what the program does next shows that it was whole."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from holdfast.checkpoints.file_image import FileImage
from holdfast.errors import SaveError, TornSnapshot
from holdfast.programs.program_files import Signs

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
