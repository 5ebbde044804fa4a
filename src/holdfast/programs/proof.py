"""Whether a program's files, as they lie there, are a whole checkpoint: by which sign, or that nobody knows.

A file at rest proves nothing: programs pause while they write, and write one file after the other. Files that
nobody vouches for are at most a candidate (see `candidate`), which is never put over anything unasked.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import SaveError
from holdfast.programs.open_files import are_being_written, on_one_machine
from holdfast.programs.program_files import Signs, signs_of
from holdfast.programs.recipe import Prepared, Recipe

log = logging.getLogger("holdfast")
CHECK_SECONDS = 600.0
HINT = (
    "say how to tell: --check COMMAND, --written-last FILE, --ends-with TEXT, --replaces-files; or "
    "--trust-files to take the risk"
)


class Proof:
    """Each answer is the sign in words, or None."""

    def __init__(self, recipe: Recipe, prepared: Prepared, folder: Path, environ: Mapping[str, str]) -> None:
        self._recipe = recipe
        self._prepared = prepared
        self._folder = folder
        self._can_look = on_one_machine(environ)
        self._refused: Signs = {}

    def stand_alone(self, signs: Signs) -> bool:
        """Whether no file of these needs another one of the same moment."""
        return len(signs) == 1 or self._recipe.independent_files

    def while_running(self, signs: Signs, before: Signs) -> str | None:
        """`before` is what the last look saw, a second ago."""
        recipe = self._recipe
        if recipe.trust_files:
            return "trusted" if recipe.replaces_files or signs == before else None
        if recipe.check:
            return self._checked(signs) if signs == before and not self.is_open(signs) else None
        if recipe.written_last:
            return self._marked(signs) if not self.is_open(signs) else None
        if not self.stand_alone(signs):
            return None
        if recipe.replaces_files:
            return "renamed into place"
        if recipe.ends_with and not self.is_open(signs):
            return self._signed(signs)
        return None

    def after_its_end(self, signs: Signs, returncode: int | None) -> str | None:
        """Nobody writes any more. `returncode` None: it is not known how it ended; it may have been killed
        halfway, and then only what survives that is a sign."""
        recipe = self._recipe
        if recipe.trust_files:
            return "trusted"
        if recipe.check:
            return self._checked(signs)
        if returncode == 0:
            return "the program ended by itself"
        marker_is_apart = bool(recipe.written_last) and not set(self._markers()) & set(signs)
        if marker_is_apart and self._marked(signs):
            return self._marked(signs)
        if recipe.replaces_files and self.stand_alone(signs) and not recipe.written_last:
            return "renamed into place"
        return None

    def is_open(self, signs: Signs) -> bool:
        """Also where that cannot be told."""
        return not self._can_look or are_being_written([self._folder / name for name in signs]) is not False

    def _markers(self) -> Signs:
        return signs_of([self._prepared.written_last], self._folder)

    def _marked(self, signs: Signs) -> str | None:
        markers = self._markers()
        newest = max((sign.mtime_ns for sign in markers.values()), default=None)
        others = [sign.mtime_ns for name, sign in signs.items() if name not in markers]
        if newest is None or any(mtime > newest for mtime in others):
            return None
        return f"{self._prepared.written_last} was written last"

    def _signed(self, signs: Signs) -> str | None:
        end = self._recipe.ends_with.encode()
        for name in signs:
            try:
                with open(self._folder / name, "rb") as file:
                    # A last line may or may not be closed by a line feed.
                    file.seek(max(signs[name].size - len(end) - 2, 0))
                    if not file.read().rstrip(b"\r\n").endswith(end.rstrip(b"\r\n")):
                        return None
            except OSError:
                return None
        return f"ends with {self._recipe.ends_with!r}"

    def _checked(self, signs: Signs) -> str | None:
        if signs == self._refused:
            return None
        command = list(self._prepared.check)
        try:
            done = subprocess.run(
                command, cwd=self._folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace", timeout=CHECK_SECONDS, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SaveError(f"the check {' '.join(command)} cannot be run: {error}") from error
        if done.returncode == 0:
            return "the check accepted it"
        self._refused = signs
        said = (done.stderr or done.stdout).strip().splitlines()
        log.warning(
            "holdfast: the check refused what the program wrote (exit code %d): %s",
            done.returncode, said[-1][:200] if said else "no reason given",
        )  # fmt: skip
        return None
