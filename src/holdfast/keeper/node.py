"""The workers of this node on behalf of a leader: started, watched and stopped as it says.

Everything happens in the main thread, a step at a time: nothing here waits, except where nobody leads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from holdfast.clock import Clock
from holdfast.jobs.attempts import AttemptEnd
from holdfast.jobs.watchdog import Watchdog
from holdfast.keeper.settings import KeeperSettings
from holdfast.keeper.words import end_to_json
from holdfast.keeper.workers import Place, Workers, cannot_start
from holdfast.keeper.world import World

GONE_SECONDS = 30.0
# Killed processes are gone in a moment; those that wait for a dead file system, perhaps never.
_LOOK_AGAIN_SECONDS = 0.1

Say = Callable[[dict[str, Any]], None]


class Node:
    def __init__(
        self,
        command: Sequence[str],
        settings: KeeperSettings,
        environ: Mapping[str, str],
        folder: Path,
        clock: Clock,
        open_output: Callable[[int, int], IO[bytes] | None],
    ) -> None:
        self._command = command
        self._settings = settings
        self._environ = environ
        self._folder = folder
        self._clock = clock
        self._open_output = open_output
        # What they learn in one generation serves the next.
        self._watchdogs = [Watchdog(settings.hang) for _ in range(settings.procs_per_node)]
        self._workers: Workers | None = None
        self._stop_said: int | None = None
        # When something is to be done although nothing happens.
        self.due: float | None = None
        self.run = settings.run

    def start(self, world: World, index: int, port: int, attempt: int, say: Say) -> None:
        run_id = f"holdfast-{os.path.basename(os.path.abspath(self._settings.meet))}"
        place = Place(world, index, port, attempt, run_id, self._settings.deadline)
        now = self._clock.monotonic()
        try:
            self._workers = Workers(
                self._command, place, self._environ, self._folder, self._watchdogs, now, self._open_output
            )
        except OSError as error:
            say(_ended(world.generation, 0, cannot_start(self._command, error)))

    def signal(self, number: int) -> None:
        """Ask the workers to stop; they are killed if they do not within the grace."""
        if self._workers is not None:
            self._workers.signal(number)
            self._kill_after(self._settings.grace)

    def stop(self, generation: int, grace: float) -> None:
        self._stop_said = generation
        self._kill_after(grace)

    def look(self, asked: str | None, say: Say, stopped: Callable[[int], None]) -> None:
        """Tell what happened to the workers since the last look; `stopped` when none of them is left."""
        workers, now = self._workers, self._clock.monotonic()
        if workers is not None:
            news = workers.look(now, asked)
            # Before anything that may end the job: where its checkpoints are.
            if self.run is None and workers.run is not None:
                self.run = workers.run
                say({"say": "run", "run": self.run})
            for local_rank, end in news:
                say(_ended(workers.place.world.generation, local_rank, end))
            if self.due is not None:
                if workers.all_told and workers.are_gone:
                    self._forget()
                elif now >= self.due:
                    workers.kill()
                    self.due = now + _LOOK_AGAIN_SECONDS
        if self._workers is None and self._stop_said is not None:
            generation, self._stop_said = self._stop_said, None
            stopped(generation)

    def end(self, pause: Callable[[float], None]) -> None:
        """At once, without anybody to tell."""
        workers, end = self._workers, self._clock.monotonic() + GONE_SECONDS
        if workers is not None:
            workers.kill()
            while not workers.are_gone and self._clock.monotonic() < end:
                pause(_LOOK_AGAIN_SECONDS)
            self._forget()
        self._stop_said, self.due = None, None

    def _kill_after(self, seconds: float) -> None:
        at = self._clock.monotonic() + seconds
        self.due = at if self.due is None else min(self.due, at)

    def _forget(self) -> None:
        if self._workers is not None:
            self._workers.clear()
        self._workers, self.due = None, None


def _ended(generation: int, local_rank: int, end: AttemptEnd) -> dict[str, Any]:
    return {"say": "ended", "generation": generation, "local_rank": local_rank, "end": end_to_json(end)}
