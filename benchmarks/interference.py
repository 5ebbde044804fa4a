"""A neighbour that eats a core and the disk comes and goes: the interval must follow it up and down again.

The budget is spent in full (policy="checkfreq"), so that every change of cost shows. Overhead is measured
here, from step times, and not taken from the policy.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import holdfast
from line_plot import Panel, over_time
from options import parse_options, scratch
from scoreboard import Scoreboard
from workload import Training, gpt_training

BUDGET = 0.03
PHASE_LIMIT_SECONDS = 80.0

NEIGHBOUR = """
import os, sys, threading
def compute():
    while True:
        sum(range(100000))
threading.Thread(target=compute, daemon=True).start()
block = os.urandom(1 << 20)
while True:
    with open(sys.argv[1], "wb") as file:
        for _ in range(64):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
"""


@dataclass
class Cycle:
    """From one save to the next: when, how long, and how much longer than without the save."""

    at: float
    seconds: float
    quiet: list[float]  # steps without a save about
    busy: list[float]  # steps while one was being taken or written

    @property
    def overhead(self) -> float:
        return overhead_of([self])


def overhead_of(cycles: list[Cycle]) -> float:
    """Pooled: beside a neighbour that hits every other step, one cycle alone says little."""
    usual = statistics.fmean(step for one in cycles for step in one.quiet)
    busy = [step for one in cycles for step in one.busy]
    steps = len(busy) + sum(len(one.quiet) for one in cycles)
    return (sum(busy) - len(busy) * usual) / (steps * usual)


def error_of(cycles: list[Cycle]) -> float:
    """One standard error of that, from how much the cycles differ."""
    return statistics.stdev(one.overhead for one in cycles) / math.sqrt(len(cycles))


def percent(cycles: list[Cycle]) -> str:
    return f"{100 * overhead_of(cycles):.1f} ± {100 * error_of(cycles):.1f} %"


@dataclass
class Watch:
    """Cuts the training into cycles at its saves."""

    began: float = field(default_factory=time.perf_counter)
    cycles: list[Cycle] = field(default_factory=list)
    quiet: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    start: float = 0.0

    def step(self, seconds: float, *, disturbed: bool) -> None:
        (self.busy if disturbed else self.quiet).append(seconds)

    def save(self) -> None:
        now = time.perf_counter()
        if self.start and len(self.quiet) >= 3 and self.busy:
            self.cycles.append(Cycle(self.start - self.began, now - self.start, self.quiet, self.busy))
        self.start = now
        self.quiet, self.busy = [], []


@contextmanager
def neighbour(folder: Path) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR, str(folder / "neighbour.bin")])
    try:
        yield
    finally:
        process.kill()
        process.wait(timeout=30)


def train(training: Training, run: Any, watch: Watch, cycles: int) -> list[Cycle]:
    """Until so many more cycles are complete, or the phase's time is over."""
    first, end = len(watch.cycles), time.perf_counter() + PHASE_LIMIT_SECONDS
    while len(watch.cycles) < first + cycles and time.perf_counter() < end and not run.stopping:
        begin = time.perf_counter()
        disturbed = run.policy.save_pending
        training.forward_backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        started = run.policy.saves_started
        run.end_step()
        watch.step(time.perf_counter() - begin, disturbed=disturbed or run.policy.save_pending)
        if run.policy.saves_started > started:
            watch.save()
    return watch.cycles[first:]


def main() -> None:
    options = parse_options(__doc__, repeats=12)
    torch.set_num_threads(1)  # leaves a core to the background worker: what the neighbour then takes away
    training = gpt_training(quick=True, batch=1, length=32)
    board = Scoreboard("interference", "A neighbour on the same core and disk comes and goes", options)
    cycles = 3 if options.quick else options.repeats
    watch = Watch()
    with scratch(options) as folder:
        run = holdfast.Run(
            folder / "run",
            policy="checkfreq",
            budget=BUDGET,
            model=training.model,
            optimizer=training.optimizer,
        )
        with run:
            calm = train(training, run, watch, 2 * cycles + 4)
            arrived = time.perf_counter() - watch.began
            with neighbour(folder):
                disturbed = train(training, run, watch, 3 * cycles)
            left = time.perf_counter() - watch.began
            recovered = train(training, run, watch, 2 * cycles + 4)
    if min(len(calm), len(disturbed), len(recovered)) < 2:
        sys.exit("too few saves to judge: the machine is too slow or too busy for this benchmark")
    settled = disturbed[5:] or disturbed
    before = statistics.median(one.seconds for one in calm[-10:])
    beside = statistics.median(one.seconds for one in settled)
    after = statistics.median(one.seconds for one in recovered[-10:])
    board.add("calm", "interval", "s", [one.seconds for one in calm[-10:]])
    board.add("neighbour", "interval", "s", [one.seconds for one in disturbed])
    board.add("calm again", "interval", "s", [one.seconds for one in recovered[-10:]])
    board.add("neighbour", "overhead from the sixth save on", "%", [100 * one.overhead for one in settled])
    # The budget is a mean over saves: single ones vary with the disk.
    board.at_most(
        "overhead beside the neighbour, from its sixth save on", 100 * overhead_of(settled), 3.5, "%"
    )
    board.at_most("interval off its old value after it left", 100 * abs(after / before - 1), 20.0, "%")
    board.notes.append(
        f"interval {before:.1f} s calm, {beside:.1f} s beside the neighbour, {after:.1f} s after it left; "
        f"overhead {percent(settled)} beside it, {percent(calm[4:])} calm (one standard error)"
    )
    board.finish()
    options.out.mkdir(parents=True, exist_ok=True)
    text = over_time(
        "The interval follows the cost, both ways",
        [
            Panel("interval, s", [(one.at, one.seconds) for one in watch.cycles]),
            Panel("overhead, %", [(one.at, 100 * one.overhead) for one in watch.cycles], limit=100 * BUDGET),
        ],
        shaded=(arrived, left, "neighbour"),
    )
    (options.out / "interference.svg").write_text(text)


if __name__ == "__main__":
    main()
