"""Drives a program that writes checkpoint files of its own: keeps each new version of them as a generation,
and before a restart makes sure that the program finds the newest good one."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import SetupError, TornSnapshot
from holdfast.events import Emit, Event, Restored, RunEnded, RunStarted, SaveCommitted, Warned
from holdfast.jobs.supervisor_child import Child
from holdfast.programs.candidate import Candidate, StopCost
from holdfast.programs.generations import Generation, Generations, in_place, set_aside
from holdfast.programs.proof import HINT, Proof, Signs, signs_of
from holdfast.programs.recipe import Prepared, Recipe

log = logging.getLogger("holdfast")
# A program that failed this often right after starting from a generation cannot use it.
FAILURES_TO_SUSPECT = 2
# A program that watches the time itself is only reminded at the very end.
_REMINDER_SECONDS = 10.0


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
        history: Sequence[Event] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.stop_seconds = recipe.stop_seconds
        self._cost = StopCost(Path(generations.where))
        self._seconds_at_start: float | None = None
        self._asked_at: float | None = None
        # Those that Slurm sends as a warning; the program is stopped in its own way.
        warnings = {signal.SIGUSR1, signal.SIGUSR2}
        self.ignored_signals = warnings - {signal.Signals[f"SIG{recipe.stop_signal}"]}
        self._recipe = recipe
        self._prepared = prepared
        self._generations = generations
        self._folder = folder
        self._clock = clock
        self._emit = emit
        self._suspects = suspects(history)
        # The program ran before under this run, so what lies there may be what a killed one left.
        self._ran_before = any(isinstance(event, RunStarted) for event in history)
        self._proof = Proof(recipe, prepared, folder, os.environ if environ is None else environ)
        self._candidate = Candidate(Path(generations.where), folder)
        self._kept: Signs = {}
        self._seen: Signs = {}
        self._said: set[str] = set()

    @property
    def stop_before(self) -> float:
        if self._recipe.deadline:
            return min(self.stop_seconds, _REMINDER_SECONDS)
        return self._cost.lead(self._seconds_at_start, self.stop_seconds)

    @property
    def knows_its_cost(self) -> bool:
        return bool(self._recipe.deadline) or self._cost.seconds is not None

    @property
    def generation(self) -> int:
        return self._generations.number

    # ---- before the program

    def start(self, seconds_left: float | None) -> list[str]:
        self._seconds_at_start = seconds_left
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
            return bool(present) and self._adopt(present)
        if newest.name not in self._suspects and self._is_in_place(newest, present):
            if not self._generations.is_whole(newest):
                self._keep(present, "damaged or gone in the run's folder, whole in place")
            self._say_restored(newest, begun)
            return True
        if self._is_newer(present, newest) and (sign := self._proof.after_its_end(present, None)):
            self._keep(present, f"written after the last look at it: {sign}")
            return True
        chosen = self._generations.newest_good(self._suspects)
        assert chosen is not None
        aside = self._generations.put_back(chosen, self._folder, present)
        if aside:
            self._warn(f"put back generation {chosen.found.step}; set aside: {', '.join(aside)}")
        self._say_restored(chosen, begun)
        return True

    def _adopt(self, present: Signs) -> bool:
        """Files in place, and no generation yet. Whether to continue from them."""
        if not self._ran_before:
            # From before holdfast was there. The program would take them; so do we.
            self._keep(present, "found when the program was first started")
            return True
        if sign := self._proof.after_its_end(present, None):
            self._keep(present, f"left by an earlier attempt: {sign}")
            return True
        aside = set_aside(self._folder, list(present))
        self._warn(
            "an earlier attempt ended while nobody could tell whether its files were whole, and there is no "
            f"older generation: starting from the beginning; set aside: {', '.join(aside)}; {HINT}"
        )
        return False

    def _is_in_place(self, generation: Generation, present: Signs) -> bool:
        return set(present) == set(generation.files) and in_place(generation, self._folder)

    def _is_newer(self, present: Signs, newest: Generation) -> bool:
        """Whether what lies there is a later checkpoint. Damage leaves the time alone."""
        # After a fall-back the file in place is the very one that the program could not read.
        if not present or self._suspects:
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
        # A file that changes while it is read is looked at again a second later.
        with contextlib.suppress(TornSnapshot):
            self._settle(signs)
            if not signs or signs == self._kept:
                return
            if sign := self._proof.while_running(signs, before):
                if self._signs() != signs:
                    return  # the sign may be one of what came meanwhile
                self._keep(signs, f"the program wrote a checkpoint: {sign}")
            else:
                self._consider(signs)

    def _settle(self, signs: Signs) -> None:
        """The candidate becomes a generation once it is known to have been whole."""
        candidate = self._candidate
        if not self._proof.stand_alone(signs):
            candidate.drop()  # there was one file more to come
        if sign := candidate.was_whole(signs, self._clock.monotonic()):
            self._generations.keep(candidate.paths(), reason=f"the program wrote a checkpoint: {sign}")
            self._kept = candidate.signs
            candidate.drop()

    def _consider(self, signs: Signs) -> None:
        """Nothing says that these are whole. A copy is taken where nobody has them open."""
        candidate = self._candidate
        if signs == candidate.signs or not any(sign.size for sign in signs.values()):
            return
        if self._recipe.check or self._recipe.written_last or self._recipe.ends_with:
            return  # its own sign will come
        alone = self._proof.stand_alone(signs)
        if not alone:
            self._warn_once(
                f"{len(signs)} files belong to a checkpoint of this program, and nothing says when they "
                f"belong together: they are kept as a candidate in {candidate.where} and not used; {HINT}, "
                "or --independent-files if each of them is a checkpoint of its own"
            )
        if self._proof.is_open(signs):
            return
        candidate.take(signs, self._clock.monotonic())
        if not alone:
            # Nothing that the program does later can show that they belonged together.
            candidate.drop()

    def stop(self, child: Child, why: str) -> None:
        log.info("holdfast: %s: asking the program to stop", why)
        self._asked_at = self._clock.monotonic()
        child.signal(signal.Signals[f"SIG{self._recipe.stop_signal}"])

    # ---- after it

    def ended(self, returncode: int, *, stopping: bool) -> bool:
        complete = self._is_complete(returncode, stopping=stopping)
        signs = self._signs()
        with contextlib.suppress(TornSnapshot):
            self._settle(signs)
        sign = self._proof.after_its_end(signs, returncode) if signs else None
        if complete:
            self._require_something(signs)
            self._keep(signs, "the program has finished", complete=True)
        elif signs and signs != self._kept and sign:
            self._keep(signs, f"the program ended: {sign}")
        elif signs and signs != self._kept:
            self._warn("the program ended, and nothing says that the files it left are whole: not kept")
        if self._asked_at is not None:
            self._cost.measured(self._clock.monotonic() - self._asked_at)
        return complete

    def _require_something(self, signs: Signs) -> None:
        if not signs and not self._generations.number:
            patterns = ", ".join(self._prepared.checkpoint)
            raise SetupError(
                f"nothing ever matched {patterns}: no checkpoint of this program was kept",
                hint="a pattern is relative to the folder where holdfast is started",
            )

    def _is_complete(self, returncode: int, *, stopping: bool) -> bool:
        wanted = self._prepared.complete_files
        if wanted:
            return returncode == 0 and all((self._folder / name).exists() for name in wanted)
        return returncode == 0 and not stopping

    # ---- files

    def _signs(self) -> Signs:
        return signs_of(self._prepared.checkpoint, self._folder)

    def _keep(self, signs: Signs, reason: str, *, complete: bool = False) -> None:
        paths = {name: self._folder / name for name in signs}
        self._generations.keep(paths, reason=reason, complete=complete, signs=signs)
        self._kept = signs
        self._candidate.drop()

    def _warn_once(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            self._warn(message)

    def _warn(self, message: str) -> None:
        log.warning("holdfast: %s", message)
        self._emit(Warned(time=self._clock.wall(), message=message))
