"""What the demo does, in order: three trainings side by side, then one that is killed and resumed.

Measures and reports; draws nothing. Every number it returns was measured in this very run.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.clock import SystemClock
from holdfast.errors import SetupError
from holdfast.events import SaveCommitted, SnapshotTaken
from holdfast.stores.journal import read_events

NONE, PLAIN, OURS = WAYS = ("no checkpoints", "torch.save", "holdfast")
KILLED, RESUMED = "kill -9", "resumed"
EVERY, BATCH = 10, 32
# One way's share of the time. Four such stretches and the imports fit into a minute.
_SECONDS_PER_WAY = 9.0
# Importing torch on a busy machine takes a while; a step never does.
_SILENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Lane:
    """One training on its way. `first` is where it began, after a resume."""

    title: str
    total: int
    first: int = 0
    step: int = 0
    seconds: float = 0.0
    loss: float | None = None
    is_dead: bool = False
    is_done: bool = False


@dataclass(frozen=True, kw_only=True)
class WayResult:
    """`stall_seconds` is how long the training loop stood still for one save, the median of all."""

    way: str
    seconds: float
    saves: int
    stall_seconds: float | None
    fingerprint: str
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class KillResult:
    killed_after_step: int
    epoch: int
    epoch_share: float
    resumed_at_step: int
    steps_redone: int
    restore_seconds: float
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    ways: tuple[WayResult, ...]
    kill: KillResult
    samples: int
    parameters: int
    state_bytes: int
    epochs: int
    steps: int
    every: int
    threads: int
    torch: str
    cores: int
    load: float

    @property
    def is_identical(self) -> bool:
        """Whether every training, the killed one included, ended with the same bits."""
        return {way.fingerprint for way in self.ways} == {self.kill.fingerprint}

    def way(self, name: str) -> WayResult:
        return next(way for way in self.ways if way.way == name)


class TrainingProcess:
    """A child that speaks JSON lines and may be killed. Waits have limits; none outlives the demo."""

    def __init__(self, log: Path, alive: ExitStack) -> None:
        self._log = log
        with open(log, "wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli.trials.torch_demo_training"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                # Ctrl-C is for the demo, which then ends its children itself.
                start_new_session=True,
            )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out, self._rest = self._process.stdin, self._process.stdout.fileno(), b""
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._out, selectors.EVENT_READ)
        alive.callback(self._end)

    def say(self, **said: Any) -> None:
        try:
            self._in.write(json.dumps(said).encode() + b"\n")
            self._in.flush()
        except BrokenPipeError as error:
            raise self._trouble("ended too early") from error

    def hear(self, *events: str) -> dict[str, Any]:
        """The next line, or the next of these events. SetupError, with what the process wrote last, if it
        ends or falls silent."""
        clock = SystemClock()
        give_up = clock.monotonic() + _SILENCE_SECONDS
        while b"\n" not in self._rest:
            if not self._ready.select(max(give_up - clock.monotonic(), 0.0)):
                raise self._trouble(f"said nothing for {_SILENCE_SECONDS:.0f} s")
            got = os.read(self._out, 1 << 16)
            if not got:
                raise self._trouble("ended too early")
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        heard: dict[str, Any] = json.loads(line)
        return heard if not events or heard["event"] in events else self.hear(*events)

    def kill(self) -> list[int]:
        """SIGKILL: nothing in the process runs any more. Returns the steps that nobody has read yet."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(timeout=_SILENCE_SECONDS)
        while got := os.read(self._out, 1 << 16):
            self._rest += got
        lines = [json.loads(line) for line in self._rest.split(b"\n")[:-1] if line]
        return [said["step"] for said in lines if said["event"] == "step"]

    def _trouble(self, what: str) -> SetupError:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        cause = f": {lines[-1]}" if lines else ""
        return SetupError(
            f"the demo's training process {what}{cause}", hint=f"its messages are in {self._log}"
        )

    def _end(self) -> None:
        self._process.kill()
        self._process.wait(timeout=_SILENCE_SECONDS)
        self._ready.close()
        # What a dead process did not read is not missed.
        with contextlib.suppress(BrokenPipeError):
            self._process.__exit__(None, None, None)


def play(folder: Path, watch: Callable[[Mapping[str, Lane]], None], epochs: int | None = None) -> DemoResult:
    """Do all of it in `folder`, telling `watch` how far each training is."""
    # Before our own processes count.
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    with ExitStack() as alive:
        # Together, because importing torch is what takes long.
        names = {way: way.replace(" ", "-") for way in WAYS}
        racers = {way: TrainingProcess(folder / f"{name}.log", alive) for way, name in names.items()}
        victim = TrainingProcess(folder / "victim.log", alive)
        ready, *_ = [process.hear("ready") for process in (*racers.values(), victim)]
        per_epoch = -(-ready["samples"] // BATCH)
        if epochs is None:
            racers[NONE].say(calibrate=True)
            step = racers[NONE].hear("calibrated")["step_seconds"]
            epochs = min(max(round(_SECONDS_PER_WAY / (step * per_epoch)), 2), 8)
        race = _Race(folder, epochs, per_epoch, watch)
        facts = race.run(racers)
        kill = race.kill_and_resume(victim, lambda: TrainingProcess(folder / "survivor.log", alive))
    saves = [event for event in read_events(folder / OURS) if isinstance(event, SaveCommitted)]
    return DemoResult(
        ways=tuple(_result(way, facts[way], folder / OURS) for way in WAYS), kill=kill,
        samples=ready["samples"], parameters=facts[NONE]["parameters"],
        state_bytes=max(event.bytes for event in saves), epochs=epochs, steps=epochs * per_epoch,
        every=EVERY, threads=ready["threads"], torch=ready["torch"], cores=cores, load=load,
    )  # fmt: skip


class _Race:
    """The lanes as they are now, and what every training is told."""

    def __init__(
        self, folder: Path, epochs: int, per_epoch: int, watch: Callable[[Mapping[str, Lane]], None]
    ) -> None:
        self._folder, self._epochs, self._per_epoch, self._watch = folder, epochs, per_epoch, watch
        self._lanes = {way: Lane(way, epochs * per_epoch) for way in WAYS}
        watch(self._lanes)

    def _order(self, way: str, folder: str, *, turn: int) -> dict[str, Any]:
        place = self._folder / folder
        place.mkdir(exist_ok=True)
        return {"way": way, "folder": str(place), "epochs": self._epochs, "every": EVERY, "turn": turn}

    def _see(self, title: str, **changes: Any) -> None:
        known = self._lanes.get(title) or Lane(title, self._epochs * self._per_epoch)
        heard = {name: changes[name] for name in changes.keys() & Lane.__annotations__.keys()}
        self._lanes[title] = replace(known, **heard)
        self._watch(self._lanes)

    def run(self, racers: Mapping[str, TrainingProcess]) -> dict[str, dict[str, Any]]:
        """All three to the end, a few steps of each in turn: whatever slows the machine slows all of them."""
        facts: dict[str, dict[str, Any]] = {}
        turns = list(WAYS)
        orders = {way: self._order(way, way.replace(" ", "-"), turn=2 * EVERY) for way in WAYS}
        while len(facts) < len(WAYS):
            for way in turns:
                if way in facts:
                    continue
                racers[way].say(**orders.pop(way, {"go": True}))
                while (heard := racers[way].hear("step", "waiting", "done"))["event"] == "step":
                    self._see(way, **heard)
                if heard["event"] == "done":
                    facts[way] = heard
                    self._see(way, seconds=heard["seconds"], is_done=True)
            # Another one first each time, so that none always follows the same neighbour.
            turns.append(turns.pop(0))
        return facts

    def kill_and_resume(self, victim: TrainingProcess, start: Callable[[], TrainingProcess]) -> KillResult:
        per_epoch = self._per_epoch
        # Not from a seed: the promise holds at any instant, so any will do, and another one every time.
        inside = random.SystemRandom().randrange(per_epoch // 4, per_epoch * 3 // 4)
        target = self._epochs * 3 // 5 * per_epoch + inside
        order = self._order(OURS, "killed", turn=0)
        victim.say(**order)
        while (heard := victim.hear("step"))["step"] < target:
            self._see(KILLED, **heard)
        reached = max([heard["step"], *victim.kill()])
        self._see(KILLED, step=reached, is_dead=True)
        survivor = start()
        survivor.hear("ready")
        survivor.say(**order)
        resumed = survivor.hear("resumed")
        self._see(RESUMED, step=resumed["step"], first=resumed["step"])
        while (heard := survivor.hear("step", "done"))["event"] == "step":
            self._see(RESUMED, **heard)
        self._see(RESUMED, is_done=True)
        return KillResult(
            killed_after_step=reached, epoch=reached // per_epoch + 1,
            epoch_share=(reached % per_epoch) / per_epoch, resumed_at_step=resumed["step"],
            steps_redone=reached - resumed["step"], restore_seconds=resumed["seconds"],
            fingerprint=heard["fingerprint"],
        )  # fmt: skip


def _result(way: str, facts: Mapping[str, Any], run: Path) -> WayResult:
    stalls = facts["stalls"]
    if way == OURS:
        stalls = [event.stall_seconds for event in read_events(run) if isinstance(event, SnapshotTaken)]
    return WayResult(
        way=way, seconds=facts["seconds"], saves=len(stalls), fingerprint=facts["fingerprint"],
        stall_seconds=statistics.median(stalls) if stalls else None, accuracy=facts["accuracy"],
    )  # fmt: skip
