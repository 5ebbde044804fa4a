"""CheckFreq's promise, kept: save as often as a 3% budget allows, and end within 3.5%.

One training, in alternating blocks: without saves, with holdfast, with torch.save at the very same steps. It
is one and the same, so that where the memory of two copies lies cannot matter. Each block ends when its saves
are durable, so no cost is left to the next. Training computes on one thread, as where an accelerator
computes: the background has a core to work on.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import holdfast
from holdfast.events import SnapshotTaken
from holdfast.stores.journal import read_events
from options import Options, parse_options, scratch
from plots import Bar, bars
from scoreboard import Scoreboard
from workload import Training, gpt_training

BUDGET = 0.03
SAVES_PER_BLOCK = 2
LIMIT_STEPS = 2000  # per block: a block must end even if nothing is ever saved


class BlockClock:
    """Time that stands still while other blocks run: to the policy, training is not interrupted."""

    def __init__(self) -> None:
        self._away = 0.0
        self._left_at = time.monotonic()

    def enter(self) -> None:
        self._away += time.monotonic() - self._left_at

    def leave(self) -> None:
        self._left_at = time.monotonic()

    def monotonic(self) -> float:
        return time.monotonic() - self._away

    def wall(self) -> float:
        return time.time()


def iterate(training: Training) -> None:
    training.forward_backward()
    training.optimizer.step()
    training.optimizer.zero_grad()


def holdfast_block(
    training: Training, run: Any, clock: BlockClock, quiet: list[float]
) -> tuple[float, list[int]]:
    """Train until two more saves are durable. Seconds per step, and at which of its steps it saved.

    `quiet` collects the steps with no save about: what they lose is nobody's measured cost.
    """
    clock.enter()
    begin = time.perf_counter()
    saved: list[int] = []
    last = begin
    for step in range(LIMIT_STEPS):
        beside = run.policy.save_pending
        iterate(training)
        started = run.policy.saves_started
        run.end_step()
        now = time.perf_counter()
        if not beside and not run.policy.save_pending:
            quiet.append(now - last)
        last = now
        if run.policy.saves_started > started:
            saved.append(step)
        if (len(saved) >= SAVES_PER_BLOCK and not run.policy.save_pending) or run.stopping:
            break
    seconds = time.perf_counter() - begin
    clock.leave()
    return seconds / (step + 1), [*saved, step + 1]


def idle_block(training: Training, steps: int) -> list[float]:
    lengths = []
    for _ in range(steps):
        begin = time.perf_counter()
        iterate(training)
        lengths.append(time.perf_counter() - begin)
    return lengths


def torch_save_block(
    training: Training, steps: int, saves: list[int], folder: Path
) -> tuple[float, list[float]]:
    begin = time.perf_counter()
    stalls = []
    for step in range(steps):
        iterate(training)
        if step in saves:
            start = time.perf_counter()
            path = folder / "checkpoint.pt"
            torch.save(training.state(), path)
            with open(path, "rb") as file:
                os.fsync(file.fileno())
            stalls.append(time.perf_counter() - start)
    return (time.perf_counter() - begin) / steps, stalls


def stalls_of(mode: str, options: Options, folder: Path) -> list[float]:
    """What the training thread lost at each save, copying in this way."""
    training = gpt_training(quick=True, batch=1, length=16)
    with holdfast.Run(
        folder / mode, every="12 steps", copy=mode, model=training.model, optimizer=training.optimizer
    ) as run:
        for _ in range(24 if options.quick else 72):
            iterate(training)
            run.end_step()
    events = [event for event in read_events(folder / mode) if isinstance(event, SnapshotTaken)]
    return [event.stall_seconds for event in events[1:]]


def main() -> None:
    options = parse_options(__doc__, repeats=12)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    training = gpt_training(quick=True, batch=1, length=16)
    board = Scoreboard(
        "checkfreq_budget",
        f"Saving as often as 3% allows, state of {training.state_bytes / 1e6:.0f} MB",
        options,
    )
    clock = BlockClock()
    wanted = 200 if options.quick else 1000
    totals = {"without": 0.0, "holdfast": 0.0, "torch.save": 0.0}
    rounds: dict[str, list[float]] = {"holdfast": [], "torch.save": []}
    steps_done, sync_stalls = 0, []
    quiet: list[float] = []
    idle: list[float] = []
    with scratch(options) as folder:
        idle_block(training, 10)
        with holdfast.Run(
            folder / "run",
            policy="checkfreq",
            budget=BUDGET,
            clock=clock,
            model=training.model,
            optimizer=training.optimizer,
        ) as run:
            number = 0
            while steps_done < wanted and not run.stopping:
                with_ours, found = holdfast_block(training, run, clock, quiet)
                *saves, steps = found
                first = number % 2 == 0
                lengths = idle_block(training, steps) if first else []
                with_theirs, stalls = torch_save_block(training, steps, saves, folder)
                lengths = lengths or idle_block(training, steps)
                idle += lengths
                without = statistics.fmean(lengths)
                totals["without"] += without * steps
                totals["holdfast"] += with_ours * steps
                totals["torch.save"] += with_theirs * steps
                rounds["holdfast"].append(100 * (with_ours / without - 1))
                rounds["torch.save"].append(100 * (with_theirs / without - 1))
                sync_stalls += stalls
                steps_done += steps
                number += 1
                print(
                    f"  {steps_done:5d} steps: {with_ours / without - 1:+.2%} with holdfast, "
                    f"{with_theirs / without - 1:+.2%} with torch.save; {run.policy.explain()}",
                    flush=True,
                )
        stalls_by_mode = {mode: stalls_of(mode, options, folder) for mode in ("blocking", "overlapped")}
    for name, samples in rounds.items():
        board.add(name, "slower than without saves", "%", samples)
    board.add("torch.save + fsync", "stall of one save", "s", sync_stalls)
    board.add("holdfast, persist-only async", "stall of one save", "s", stalls_by_mode["blocking"])
    board.add("holdfast, full overlap", "stall of one save", "s", stalls_by_mode["overlapped"])
    overhead = 100 * (totals["holdfast"] / totals["without"] - 1)
    baseline = 100 * (totals["torch.save"] / totals["without"] - 1)
    board.at_most(f"{steps_done} steps within a 3% budget, end to end", overhead, 3.5, "%")
    board.at_least("torch.save at the same steps costs more by", baseline / max(overhead, 0.1), 4.0, "x")
    board.notes.append(
        f"end to end over {steps_done} steps: holdfast {overhead:+.2f}%, torch.save {baseline:+.2f}%; "
        f"steps with no save about: {100 * (statistics.median(quiet) / statistics.median(idle) - 1):+.2f}% "
        f"(medians); step {1e3 * statistics.median(idle):.0f} ms; {len(sync_stalls)} saves"
    )
    board.finish()
    data = [
        Bar(label, 1e3 * statistics.median(values), f"{1e3 * statistics.median(values):.2g} ms")
        for label, values in (
            ("synchronous torch.save", sync_stalls),
            ("holdfast, persist-only async", stalls_by_mode["blocking"]),
            ("holdfast, full overlap", stalls_by_mode["overlapped"]),
        )
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    text = bars("Stall of one save", "milliseconds", [bar for bar in data if bar.value > 0], logarithmic=True)
    (options.out / "checkfreq_budget.svg").write_text(text)


if __name__ == "__main__":
    main()
