"""What the demo does, in order: three trainings side by side, then one that is killed and resumed.

Measures and reports; draws nothing. Every number it returns was measured in this very run.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.cli.demo_child import TrainingProcess
from holdfast.events import SaveCommitted, SnapshotTaken
from holdfast.stores.journal import read_events

NONE, PLAIN, OURS = "no checkpoints", "torch.save", "holdfast"
WAYS = (NONE, PLAIN, OURS)
KILLED, RESUMED = "kill -9", "resumed"
EVERY, BATCH = 10, 32
# One way's share of the time. Four such stretches and the imports fit into a minute.
_SECONDS_PER_WAY = 9.0
_EPOCHS = (2, 8)


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


Watch = Callable[[Mapping[str, Lane]], None]


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
    def is_busy(self) -> bool:
        """Whether other work kept the cores busy when this began: then times are noisy."""
        return self.load > self.cores / 2

    @property
    def is_identical(self) -> bool:
        """Whether every training, the killed one included, ended with the same bits."""
        return {way.fingerprint for way in self.ways} == {self.kill.fingerprint}

    def way(self, name: str) -> WayResult:
        return next(way for way in self.ways if way.way == name)


def play(folder: Path, watch: Watch, epochs: int | None = None) -> DemoResult:
    """Do all of it in `folder`, telling `watch` how far each training is."""
    # Before our own processes count.
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    with ExitStack() as alive:

        def start(name: str) -> TrainingProcess:
            return alive.enter_context(TrainingProcess(folder / f"{name}.log"))

        # Together, because importing torch is what takes long.
        racers = {way: start(way.replace(" ", "-")) for way in WAYS}
        victim = start("victim")
        ready, *_ = [process.hear_until("ready") for process in (*racers.values(), victim)]
        per_epoch = -(-ready["samples"] // BATCH)
        if epochs is None:
            epochs = _affordable_epochs(racers[NONE], per_epoch)
        total = epochs * per_epoch
        stage = _Stage(folder, epochs, {way: Lane(way, total) for way in WAYS}, watch)
        facts = _race(racers, stage)
        kill = _kill_and_resume(victim, start, stage, per_epoch)
    ways = tuple(_result(way, facts[way], folder / "holdfast") for way in WAYS)
    return DemoResult(
        ways=ways,
        kill=kill,
        samples=ready["samples"],
        parameters=facts[NONE]["parameters"],
        state_bytes=max(e.bytes for e in read_events(folder / "holdfast") if isinstance(e, SaveCommitted)),
        epochs=epochs,
        steps=total,
        every=EVERY,
        threads=ready["threads"],
        torch=ready["torch"],
        cores=cores,
        load=load,
    )


def _affordable_epochs(process: TrainingProcess, per_epoch: int) -> int:
    process.say(calibrate=True)
    seconds = float(process.hear_until("calibrated")["step_seconds"])
    fewest, most = _EPOCHS
    return min(max(round(_SECONDS_PER_WAY / (seconds * per_epoch)), fewest), most)


class _Stage:
    """The lanes as they are now, and what every training is told."""

    def __init__(self, folder: Path, epochs: int, lanes: dict[str, Lane], watch: Watch) -> None:
        self.folder = folder
        self.epochs = epochs
        self.lanes = lanes
        self._watch = watch
        watch(lanes)

    def order(self, way: str, folder: str, *, turn: int) -> dict[str, Any]:
        place = self.folder / folder
        place.mkdir(exist_ok=True)
        # Turns end half-way between two saves, when the background has finished the one before.
        return {
            "way": way, "folder": str(place), "epochs": self.epochs, "every": EVERY,
            "turn": turn, "offset": EVERY // 2,
        }  # fmt: skip

    def see(self, title: str, heard: Mapping[str, Any]) -> None:
        self.lanes[title] = replace(
            self.lanes[title], step=heard["step"], seconds=heard["seconds"], loss=heard["loss"]
        )
        self._watch(self.lanes)

    def change(self, title: str, **changes: Any) -> None:
        self.lanes[title] = replace(self.lanes[title], **changes)
        self._watch(self.lanes)

    def add(self, lane: Lane) -> None:
        self.lanes[lane.title] = lane
        self._watch(self.lanes)


def _race(racers: Mapping[str, TrainingProcess], stage: _Stage) -> dict[str, dict[str, Any]]:
    """All three to the end, a few steps of each in turn: whatever slows the machine slows all of them."""
    facts: dict[str, dict[str, Any]] = {}
    turns = list(WAYS)
    for way in turns:
        racers[way].say(**stage.order(way, way.replace(" ", "-"), turn=2 * EVERY))
        _take_turn(way, racers[way], stage, facts)
    while len(facts) < len(WAYS):
        # Another one first each time, so that none always follows the same neighbour.
        turns.append(turns.pop(0))
        for way in turns:
            if way not in facts:
                racers[way].say(go=True)
                _take_turn(way, racers[way], stage, facts)
    return facts


def _take_turn(way: str, process: TrainingProcess, stage: _Stage, facts: dict[str, dict[str, Any]]) -> None:
    while (heard := process.hear())["event"] != "waiting":
        if heard["event"] == "step":
            stage.see(way, heard)
        elif heard["event"] == "done":
            facts[way] = heard
            stage.change(way, seconds=heard["seconds"], is_done=True)
            return


def _kill_and_resume(
    victim: TrainingProcess, start: Callable[[str], TrainingProcess], stage: _Stage, per_epoch: int
) -> KillResult:
    total = stage.epochs * per_epoch
    # Not from a seed: the promise holds at any instant, so any will do, and another one every time.
    chance = random.SystemRandom()
    epoch = stage.epochs * 3 // 5
    target = epoch * per_epoch + chance.randrange(per_epoch // 4, per_epoch * 3 // 4)
    stage.add(Lane(KILLED, total))
    order = stage.order(OURS, "killed", turn=0)
    victim.say(**order)
    while (heard := victim.hear_until("step"))["step"] < target:
        stage.see(KILLED, heard)
    victim.kill()
    reached = max([heard["step"], *victim.unread_steps()])
    stage.change(KILLED, step=reached, is_dead=True)
    survivor = start("survivor")
    survivor.hear_until("ready")
    survivor.say(**order)
    resumed = survivor.hear_until("resumed")
    stage.add(Lane(RESUMED, total, first=resumed["step"], step=resumed["step"]))
    while (heard := survivor.hear())["event"] != "done":
        stage.see(RESUMED, heard)
    stage.change(RESUMED, is_done=True)
    return KillResult(
        killed_after_step=reached,
        epoch=reached // per_epoch + 1,
        epoch_share=(reached % per_epoch) / per_epoch,
        resumed_at_step=resumed["step"],
        steps_redone=reached - resumed["step"],
        restore_seconds=resumed["seconds"],
        fingerprint=heard["fingerprint"],
    )


def _result(way: str, facts: Mapping[str, Any], run: Path) -> WayResult:
    stalls = facts.get("stalls", [])
    if way == OURS:
        stalls = [event.stall_seconds for event in read_events(run) if isinstance(event, SnapshotTaken)]
    return WayResult(
        way=way,
        seconds=facts["seconds"],
        saves=len(stalls),
        stall_seconds=statistics.median(stalls) if stalls else None,
        fingerprint=facts["fingerprint"],
        accuracy=facts["accuracy"],
    )
