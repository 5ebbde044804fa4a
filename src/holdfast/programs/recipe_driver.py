"""Drives a program that writes checkpoint files of its own: keeps each new version of them as a generation,
and before a restart makes sure that the program finds the newest good one."""

from __future__ import annotations

import glob
import logging
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from holdfast.checkpoints.file_image import FileSign, sign_of
from holdfast.clock import Clock
from holdfast.events import Emit, Event, Restored, RunEnded, SaveCommitted, Warned
from holdfast.jobs.supervisor_child import Child
from holdfast.programs.generation import Generation
from holdfast.programs.generations import Generations
from holdfast.programs.putting_back import SET_ASIDE, in_place
from holdfast.programs.recipe import Prepared, Recipe

log = logging.getLogger("holdfast")
# A program that failed this often right after starting from a generation cannot use it.
FAILURES_TO_SUSPECT = 2
# A program that watches the time itself is only reminded at the very end.
_REMINDER_SECONDS = 10.0
Signs = dict[str, FileSign]


def suspects(events: Iterable[Event]) -> set[str]:
    """Generations from which the program failed by itself, again and again, before it wrote another. Pure."""
    failures: dict[str, int] = {}
    restored: str | None = None
    for event in events:
        if isinstance(event, Restored):
            restored = event.name
        elif isinstance(event, SaveCommitted):
            failures.clear()
            restored = None
        elif isinstance(event, RunEnded) and event.how == "error" and restored is not None:
            failures[restored] = failures.get(restored, 0) + 1
            restored = None
    return {name for name, count in failures.items() if count >= FAILURES_TO_SUSPECT}


class RecipeDriver:
    """Satisfies Driver."""

    def __init__(
        self,
        recipe: Recipe,
        prepared: Prepared,
        generations: Generations,
        folder: Path,
        clock: Clock,
        emit: Emit,
        history: Iterable[Event] = (),
    ) -> None:
        self.stop_seconds = recipe.stop_seconds
        self.stop_before = (
            min(recipe.stop_seconds, _REMINDER_SECONDS) if recipe.deadline else self.stop_seconds
        )
        self._recipe = recipe
        self._prepared = prepared
        self._generations = generations
        self._folder = folder
        self._clock = clock
        self._emit = emit
        self._suspects = suspects(history)
        self._kept: Signs = {}
        self._seen: Signs = {}

    @property
    def generation(self) -> int:
        return self._generations.number

    # ---- before the program

    def start(self, seconds_left: float | None) -> list[str]:
        resuming = self._continue()
        self._kept = self._seen = self._signs()
        left = None if seconds_left is None else seconds_left - self.stop_before
        return self._prepared.arguments(resuming=resuming, seconds_left=left)

    def _continue(self) -> bool:
        """Make the newest good files the ones in place; whether there are any."""
        begun = self._clock.monotonic()
        present = self._signs()
        newest = self._generations.newest_known()
        if newest is None or not newest.files:
            if present:
                # From before holdfast was there. The program would take them; so do we.
                self._keep(present, "found when the program was first started")
            return bool(present)
        if newest.name not in self._suspects and self._is_in_place(newest, present):
            if not self._generations.is_whole(newest):
                self._keep(present, "damaged or gone in the run's folder, whole in place")
            self._say_restored(newest, begun)
            return True
        if self._is_newer(present, newest):
            self._keep(present, "written after the last look at it")
            return True
        chosen = self._generations.newest_good(self._suspects)
        assert chosen is not None
        aside = self._generations.put_back(chosen, self._folder, present)
        if aside:
            self._warn(f"put back generation {chosen.found.step}; set aside: {', '.join(aside)}")
        self._say_restored(chosen, begun)
        return True

    def _is_in_place(self, generation: Generation, present: Signs) -> bool:
        return set(present) == set(generation.files) and in_place(generation, self._folder)

    def _is_newer(self, present: Signs, newest: Generation) -> bool:
        """Whether what lies there is a later checkpoint, and surely whole. Damage leaves the time alone; a
        program that writes into its files may have died halfway."""
        # After a fall-back the file in place is the very one that the program could not read.
        if not self._recipe.replaces_files or not present or self._suspects:
            return False
        last = max(file.mtime_ns for file in newest.files.values())
        return max(sign.mtime_ns for sign in present.values()) > last

    def _say_restored(self, generation: Generation, begun: float) -> None:
        self._emit(
            Restored(
                time=self._clock.wall(), step=generation.found.step, name=generation.name,
                seconds=self._clock.monotonic() - begun,
                bytes=sum(file.record.size for file in generation.files.values()),
            )
        )  # fmt: skip

    # ---- while it runs

    def look(self) -> None:
        signs, before = self._signs(), self._seen
        self._seen = signs
        # Written in place, a file may be half done; what did not change between two looks is at rest.
        if signs and signs != self._kept and (self._recipe.replaces_files or signs == before):
            self._keep(signs, "the program wrote a checkpoint")

    def stop(self, child: Child, why: str) -> None:
        log.info("holdfast: %s: asking the program to stop", why)
        child.signal(signal.Signals[f"SIG{self._recipe.stop_signal}"])

    # ---- after it

    def ended(self, returncode: int, *, stopping: bool) -> bool:
        complete = self._is_complete(returncode, stopping=stopping)
        signs = self._signs()
        at_rest = self._recipe.replaces_files or returncode == 0 or signs == self._seen
        if complete:
            self._keep(signs, "the program has finished", complete=True)
        elif signs and signs != self._kept and at_rest:
            self._keep(signs, "the program ended")
        return complete

    def _is_complete(self, returncode: int, *, stopping: bool) -> bool:
        wanted = self._prepared.complete_files
        if wanted:
            return returncode == 0 and all((self._folder / name).exists() for name in wanted)
        return returncode == 0 and not stopping

    # ---- files

    def _signs(self) -> Signs:
        found: Signs = {}
        for pattern in self._prepared.checkpoint:
            for name in sorted(glob.glob(pattern, root_dir=self._folder)):
                sign = sign_of(self._folder / name)
                if sign is not None and SET_ASIDE not in name:
                    found[os.path.normpath(name)] = sign
        return found

    def _keep(self, signs: Signs, reason: str, *, complete: bool = False) -> None:
        paths = {name: self._folder / name for name in signs}
        self._generations.keep(paths, reason=reason, complete=complete)
        self._kept = signs

    def _warn(self, message: str) -> None:
        log.warning("holdfast: %s", message)
        self._emit(Warned(time=self._clock.wall(), message=message))
