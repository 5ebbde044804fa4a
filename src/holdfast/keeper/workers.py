"""The training processes of one node: started together, watched together, ended together."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from holdfast.jobs import deadline as deadlines
from holdfast.jobs import exit_codes, heartbeat, plain
from holdfast.jobs.attempts import AttemptEnd, Evidence, classify
from holdfast.jobs.environment import WallDeadline
from holdfast.jobs.heartbeat import Beat, read_beat
from holdfast.jobs.supervisor_child import Child
from holdfast.jobs.supervisor_memory import oom_kills
from holdfast.jobs.watchdog import Watchdog
from holdfast.keeper.world import World
from holdfast.tiers.node_places import ADDRESS, NODE


@dataclass(frozen=True)
class Place:
    """What the workers of one node must be told about where they are."""

    world: World
    index: int
    port: int
    attempt: int
    run_id: str
    deadline: WallDeadline | None = None

    def environment(self, local_rank: int, beats: str) -> dict[str, str]:
        """The variables that torchrun sets, and our own."""
        world, seat, procs = self.world, self.world.seats[self.index], self.world.procs_per_node
        rank = self.index * procs + local_rank
        told = {
            "RANK": rank,
            "WORLD_SIZE": world.size,
            "LOCAL_RANK": local_rank,
            "LOCAL_WORLD_SIZE": procs,
            "GROUP_RANK": self.index,
            "GROUP_WORLD_SIZE": len(world.seats),
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": world.size,
            "ROLE_NAME": "default",
            "MASTER_ADDR": world.seats[0].address,
            "MASTER_PORT": self.port,
            "TORCHELASTIC_RESTART_COUNT": self.attempt,
            "TORCHELASTIC_RUN_ID": self.run_id,
            NODE: seat.node,
            ADDRESS: seat.address,
            plain.ATTEMPT: self.attempt,
            heartbeat.VARIABLE: beats,
        }
        if self.deadline is not None:
            told[deadlines.VARIABLE] = f"@{self.deadline.at}"
        return {name: str(value) for name, value in told.items()}


class Workers:
    """Must be made and used by the main thread: its end is what the kernel kills the workers by."""

    def __init__(
        self,
        command: Sequence[str],
        place: Place,
        environ: Mapping[str, str],
        folder: Path,
        watchdogs: list[Watchdog],
        now: float,
        open_output: Callable[[int, int], IO[bytes] | None],
    ) -> None:
        self.place = place
        self._children: list[Child] = []
        self._beat_files: list[Path] = []
        self._beats: list[Beat | None] = []
        self._told: set[int] = set()
        self._watchdogs = watchdogs
        self._oom_before = oom_kills()
        procs = place.world.procs_per_node
        try:
            for local in range(procs):
                beats = folder / f"heartbeat-{place.world.generation}-{local}"
                beats.touch(mode=0o600)
                told = place.environment(local, str(beats))
                # As torchrun does: many processes that each take all cores are slow.
                threads = {"OMP_NUM_THREADS": "1"} if procs > 1 and "OMP_NUM_THREADS" not in environ else {}
                output = open_output(place.attempt, place.index * procs + local)
                try:
                    child = Child(
                        command, {**environ, **threads, **told}, output, death_signal=signal.SIGKILL
                    )
                finally:
                    if output is not None:
                        output.close()
                self._children.append(child)
                self._beat_files.append(beats)
                self._beats.append(None)
                watchdogs[local].attempt_started(now)
        except BaseException:
            self.kill()
            raise

    @property
    def run(self) -> str | None:
        """The run's folder, as soon as one of them has said it."""
        return next((beat.run for beat in self._beats if beat is not None), None)

    def look(self, now: float, asked: str | None) -> list[tuple[int, AttemptEnd]]:
        """The workers that have ended, or hang, since the last look."""
        news: list[tuple[int, AttemptEnd]] = []
        for local, child in enumerate(self._children):
            returncode = child.returncode()
            self._beats[local] = read_beat(str(self._beat_files[local])) or self._beats[local]
            if local in self._told:
                continue
            hang = None if returncode is not None else self._watchdogs[local].look(now, self._beats[local])
            if returncode is None and hang is None:
                continue
            if hang is not None:
                # A training under holdfast answers with the stacks of all its threads; others end by it.
                child.signal(signal.SIGQUIT)
            here, anywhere = oom_kills().since(self._oom_before)
            seen = Evidence(
                returncode=returncode if returncode is not None else -int(signal.SIGKILL),
                last_beat=self._beats[local], hang=hang, asked_to_stop=asked,
                oom_kills_here=here, oom_kills_anywhere=anywhere,
            )  # fmt: skip
            self._told.add(local)
            news.append((local, classify(seen)))
        return news

    def signal(self, number: int) -> None:
        for child in self._children:
            if child.returncode() is None:
                child.signal(number)

    def kill(self) -> None:
        """Everything they have started, too. At once: what was committed is safe, the rest is nothing."""
        for child in self._children:
            child.kill()

    @property
    def all_told(self) -> bool:
        """Whether `look` has spoken of every one of them."""
        return len(self._told) == len(self._children)

    @property
    def are_gone(self) -> bool:
        # All of them, so that none is still to be asked when orphans are reaped below.
        if any([child.returncode() is None for child in self._children]):
            return False
        return not any(child.left_behind() for child in self._children[-1:])

    def clear(self) -> None:
        for child in self._children[-1:]:
            child.reap_orphans()
        for beats in self._beat_files:
            beats.unlink(missing_ok=True)


def cannot_start(command: Sequence[str], error: OSError) -> AttemptEnd:
    missing = isinstance(error, FileNotFoundError)
    code = exit_codes.NOT_FOUND if missing else exit_codes.CANNOT_EXECUTE
    return AttemptEnd("cannot start", f"cannot start {command[0]!r}: {os.strerror(error.errno or 0)}", code)
