"""What saves cost as nodes are added: root checkpointing against tiers, on a shared store of 200 MB/s.

One checkpoint per epoch of a fixed dataset (levels_training.py). Root: rank 0 writes to the shared store, all
wait. holdfast: every save stays on the nodes, which protect each other; every tenth goes to the shared store.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}

import torch.distributed as dist

import holdfast
from holdfast.events import SaveCommitted
from holdfast.stores.journal import read_events
from levels_training import Size, Training, tiers_of
from node_ranks import in_ranks
from options import Options, parse_options, scratch
from root_checkpoint import save_root
from scoreboard import Scoreboard
from series_plot import Panel, Series, lines
from shared_store import Wire, put_behind

WARM, EPOCHS = 1, 10  # the tenth save of a run is the one that goes outward
NONE, ROOT, OURS = "no checkpoints", "root checkpointing", "holdfast, tiers"


def without(training: Training, steps: int) -> float:
    return timed(training, range(steps))


def with_root(training: Training, steps: int, folder: Path, wire: Wire) -> float:
    def save(number: int) -> None:
        if (number + 1) % training.steps_per_epoch == 0:
            save_root(training.state(number + 1), folder / "root.pt", wire)

    return timed(training, range(steps), save)


def timed(training: Training, numbers: Any, after: Any = lambda number: None) -> float:
    """Seconds of all epochs behind the first, which allocates and does not count."""
    warm = WARM * training.steps_per_epoch
    begun = 0.0
    for number in numbers:
        if number == warm:
            dist.barrier()
            begun = time.perf_counter()
        training.step(number)
        after(number)
    dist.barrier()
    return time.perf_counter() - begun


def with_tiers(training: Training, steps: int, folder: Path, world: int) -> tuple[float, float, float]:
    """(epochs, opening, closing) in seconds."""
    begun = time.perf_counter()
    with holdfast.Run(
        folder / "run", tiers=tiers_of(str(folder / "nodes"), world), wait_limit=60.0,
        every=f"{training.steps_per_epoch} steps", model=training.model, optimizer=training.optimizer,
    ) as run:  # fmt: skip
        opened = time.perf_counter()
        spent = timed(training, run.steps(steps), lambda number: run.end_step())
        ended = time.perf_counter()
    return spent, opened - begun, time.perf_counter() - ended


def measure(rank: int, world: int, size: Size, folder: Path, wire: Wire) -> dict[str, Any]:
    put_behind(wire, folder / "run")

    def fresh() -> Training:
        return Training(size, rank, world)

    steps = (WARM + EPOCHS) * fresh().steps_per_epoch
    base = without(fresh(), steps)
    root = with_root(fresh(), steps, folder, wire)
    by_root = wire.bytes_written
    tiers, opening, closing = with_tiers(fresh(), steps, folder, world)
    return {
        NONE: base, ROOT: root, OURS: tiers, "open": opening, "close": closing,
        "written": {ROOT: by_root, OURS: wire.bytes_written - by_root},
    }  # fmt: skip


def main() -> None:
    options = parse_options(__doc__, repeats=1)
    worlds, size = ((1, 2, 4), Size(1, 0.02, 8)) if options.quick else ((1, 2, 4, 8), Size(5, 0.1, 16))
    found: dict[int, list[dict[str, Any]]] = {world: [] for world in worlds}
    for _ in range(options.repeats if not options.quick else 1):
        for world in worlds:
            with scratch(options) as folder:
                wire = Wire(folder / "wire")
                told = in_ranks(
                    world, folder, lambda rank, n=world, f=folder, w=wire: measure(rank, n, size, f, w)
                )
                saved = sum(isinstance(event, SaveCommitted) for event in read_events(folder / "run"))
                saves = {ROOT: EPOCHS, OURS: min(saved - WARM, EPOCHS)}
                found[world].append({**told[0], "saves": saves})
    report(found, size, options)


def report(found: dict[int, list[dict[str, Any]]], size: Size, options: Options) -> None:
    title = f"What a save costs as nodes are added, {size.state_bytes / 1e6:.0f} MB"
    board = Scoreboard("multi_level", title, options)
    for world, runs in found.items():
        bare = [run[NONE] for run in runs]
        board.add(names(world, NONE), "epoch", "s", [seconds / EPOCHS for seconds in bare])
        for who in (ROOT, OURS):
            more = [run[who] - base for run, base in zip(runs, bare, strict=True)]
            # Divided by what was saved, should a save have been left out.
            each = [seconds / run["saves"][who] for seconds, run in zip(more, runs, strict=True)]
            share = [100 * seconds / base for seconds, base in zip(more, bare, strict=True)]
            board.add(names(world, who), "per save", "s", each)
            board.add(names(world, who), "of training time", "%", share)
            written = [float(run["written"][who]) for run in runs]
            board.add(names(world, who), "written to the shared store", "B", written)
        board.add(names(world, OURS), "opening the run, once", "s", [run["open"] for run in runs])
        board.add(names(world, OURS), "closing it, once", "s", [run["close"] for run in runs])
    board.notes.append(
        "an accelerator is a pause that leaves its host free; all nodes share this machine's cores and disk"
    )
    for world in [world for world in found if world >= 2]:
        ours, root = (board.median(names(world, who), "per save") for who in (OURS, ROOT))
        board.at_most(f"{world} nodes: a save with tiers against root checkpointing", ours / root, 0.2)
    largest = max(found)
    share = board.median(names(largest, OURS), "of training time")
    board.at_most(f"{largest} nodes: tiers cost, of training time", share, 20.0, "%")
    board.finish()
    draw(board, list(found), options)


def names(world: int, who: str) -> str:
    return f"{world} node{'s' if world > 1 else ''}: {who}"


def draw(board: Scoreboard, worlds: list[int], options: Options) -> None:
    def series(metric: str, factor: float) -> list[Series]:
        return [
            Series(who, [(n, board.median(names(n, who), metric) * factor) for n in worlds])
            for who in (ROOT, OURS)
        ]

    panels = [
        Panel("a save takes from training, milliseconds", series("per save", 1e3)),
        Panel("all saves, one per epoch, percent of training time", series("of training time", 1.0)),
    ]
    picture = lines(board.title, "nodes", panels, worlds)
    (options.out / "multi_level.svg").write_text(picture)


if __name__ == "__main__":
    main()
