"""What saves cost as nodes are added: root checkpointing against tiers, on a shared store of 200 MB/s.

One checkpoint per epoch of a fixed dataset (levels_training.py). Root: rank 0 writes to the shared store, all
wait. holdfast: every save stays on the nodes, which protect each other; every tenth goes to the shared store.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
# torch asks for the name of every peer; one question that a name server drops would cost 5 s.
os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"

import torch.distributed as dist

from holdfast import Run  # loaded before ranks are forked: starting is not measured
from holdfast.events import SaveCommitted
from holdfast.stores.journal import read_events
from levels_training import Size, Training, tiers_of
from node_ranks import in_ranks
from options import Options, parse_options, scratch
from root_checkpoint import save_root
from scoreboard import Scoreboard
from series_plot import Panel, Series, lines
from shared_store import Wire, put_behind

# Every block has an epoch that does not count: it allocates, and what the block before left ends in it.
UNCOUNTED, COUNTED = 1, 5
NONE, ROOT, OURS = "no checkpoints", "root checkpointing", "holdfast, tiers"


def timed(training: Training, step: Callable[[], None], save: Callable[[], None]) -> float:
    """Seconds of the counted epochs. A save ends each epoch, so its work falls into the next one."""
    begun = 0.0
    for epoch in range(UNCOUNTED + COUNTED):
        if epoch == UNCOUNTED:
            dist.barrier()
            begun = time.perf_counter()
        for _ in range(training.steps_per_epoch):
            step()
        save()
    dist.barrier()
    return time.perf_counter() - begun


def measure(
    rank: int, world: int, size: Size, folder: Path, wire: Wire, rounds: int
) -> dict[str, list[float]]:
    """One training; who saves it takes turns."""
    put_behind(wire, folder / "run")
    training = Training(size, rank, world)
    numbers = itertools.count()
    found: dict[str, list[float]] = {NONE: [], ROOT: [], OURS: []}

    def step() -> None:
        training.step(next(numbers))

    def step_of_run() -> None:
        step()
        run.end_step()

    def root() -> None:
        save_root(training.state(0), folder / "root.pt", wire)

    def tiers() -> None:
        run._require_open().saves.now("end of the epoch", by_name=False)

    begun = time.perf_counter()
    with Run(
        folder / "run", tiers=tiers_of(str(folder / "nodes"), world), wait_limit=60.0,
        every="1000000 steps", model=training.model, optimizer=training.optimizer,
    ) as run:  # fmt: skip
        opened = time.perf_counter()
        for _ in range(rounds):
            found[NONE].append(timed(training, step, lambda: None))
            found[ROOT].append(timed(training, step, root))
            found[OURS].append(timed(training, step_of_run, tiers))
        ended = time.perf_counter()
    return found | {"open": [opened - begun], "close": [time.perf_counter() - ended]}


def main() -> None:
    options = parse_options(__doc__, repeats=2)  # twelve saves: the tenth goes outward
    worlds, size = ((1, 2), Size(1, 0.05, 4)) if options.quick else ((1, 2, 4), Size(5, 0.25, 8))
    found: dict[int, dict[str, list[float]]] = {}
    saved: dict[int, int] = {}
    for world in worlds:
        with scratch(options) as folder:
            wire = Wire(folder / "wire")

            def work(rank: int, n: int = world, f: Path = folder, w: Wire = wire) -> dict[str, list[float]]:
                return measure(rank, n, size, f, w, options.repeats)

            found[world] = in_ranks(world, folder, work)[0]
            saved[world] = sum(isinstance(e, SaveCommitted) for e in read_events(folder / "run"))
    report(found, saved, size, options)


def report(
    found: dict[int, dict[str, list[float]]], saved: dict[int, int], size: Size, options: Options
) -> None:
    title = f"What a save costs as nodes are added, {size.state_bytes / 1e6:.0f} MB"
    board = Scoreboard("multi_level", title, options)
    for world, told in found.items():
        board.add(names(world, NONE), "epoch", "s", [seconds / COUNTED for seconds in told[NONE]])
        for who in (ROOT, OURS):
            more = [seconds - bare for seconds, bare in zip(told[who], told[NONE], strict=True)]
            share = [100 * m / bare for m, bare in zip(more, told[NONE], strict=True)]
            board.add(names(world, who), "per save", "s", [m / COUNTED for m in more])
            board.add(names(world, who), "of training time", "%", share)
        board.add(names(world, OURS), "opening the run, once", "s", told["open"])
        board.add(names(world, OURS), "closing it, once", "s", told["close"])
        wanted = (UNCOUNTED + COUNTED) * options.repeats
        board.at_least(f"{names(world, OURS)}: saves that were committed", saved[world], wanted, "")
    board.notes.append(
        "an accelerator is a pause that leaves its host free; all nodes share this machine's cores and disk"
    )
    for world in found:
        ours, root = (board.median(names(world, who), "per save") for who in (OURS, ROOT))
        board.at_most(f"{names(world, OURS)}, a save against root's", ours / root, 0.2)
    largest = max(found)
    share = board.median(names(largest, OURS), "of training time")
    board.at_most(f"{names(largest, OURS)}, of training time", share, 20.0, "%")
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
