"""A training that is killed every ten epochs, in the middle of one, and started again: all its processes.

What is kept of it: the loss of every step with all its digits, and for each restart how long it took and what
it read from the shared store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch.distributed as dist

from holdfast import Run  # loaded before ranks are forked: starting is not measured
from levels_training import Size, Training, mean_over_ranks, tiers_of
from node_ranks import die, in_ranks, tell
from root_checkpoint import load_root, save_root
from shared_store import Wire, put_behind

EPOCHS_BETWEEN = 10
# Seconds until a rank was ready for its first step, and until all had done it; bytes read by then.
Restarted = tuple[float, float, int]


@dataclass
class Told:
    """The log: what each step's loss was, once for every time that it was done."""

    losses: dict[int, list[str]]
    ready_seconds: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    restart_bytes: list[int] = field(default_factory=list)


class Attempt:
    """What one rank does between two failures."""

    def __init__(self, rank: int, world: int, size: Size, folder: Path, wire: Wire) -> None:
        self.rank, self.world, self.folder, self.wire = rank, world, folder, wire
        self.training = Training(size, rank, world)
        dist.barrier()
        self.begun = time.perf_counter()

    def undisturbed(self, steps: int, dies_at: int) -> Restarted:
        return self.train(range(steps), dies_at)

    def with_root(self, steps: int, dies_at: int) -> Restarted:
        path, training = self.folder / "root.pt", self.training
        first = training.load(load_root(path, self.wire)) if path.exists() else 0

        def save(number: int) -> None:
            # Only the ones that are needed: here restarts are measured, not saves.
            if (number + 1) % (EPOCHS_BETWEEN * training.steps_per_epoch) == 0:
                save_root(training.state(number + 1), path, self.wire)

        return self.train(range(first, steps), dies_at, save)

    def with_caches(self, steps: int, dies_at: int) -> Restarted:
        put_behind(self.wire, self.folder / "run")
        training = self.training
        with Run(
            self.folder / "run", tiers=tiers_of(str(self.folder / "nodes"), self.world), wait_limit=60.0,
            every=f"{training.steps_per_epoch} steps", model=training.model, optimizer=training.optimizer,
        ) as run:  # fmt: skip
            return self.train(run.steps(steps), dies_at, lambda number: run.end_step())

    def train(
        self, numbers: Iterable[int], dies_at: int, after: Callable[[int], None] = lambda number: None
    ) -> Restarted:
        restarted: Restarted | None = None
        ready = time.perf_counter() - self.begun
        with (self.folder / "log").open("a") as log:
            for number in numbers:
                loss = mean_over_ranks([self.training.step(number)])
                if self.rank == 0:
                    log.write(f"{number} {loss!r}\n")
                    log.flush()
                after(number)
                if restarted is None:
                    dist.barrier()
                    # Later reads are not the restart's: older checkpoints are checked before they may go.
                    restarted = ready, time.perf_counter() - self.begun, self.wire.bytes_read
                if number == dies_at:
                    tell(self.folder, self.rank, restarted)
                    try:
                        dist.barrier()
                    finally:
                        die()
        assert restarted is not None
        return restarted


Way = Callable[[Attempt, int, int], Restarted]


def train_and_kill(way: Way, world: int, size: Size, folder: Path, epochs: int) -> Told:
    """Undisturbed if `way` is that, else killed behind every tenth epoch but the last."""
    folder.mkdir()
    wire = Wire(folder / "wire")
    per_epoch = size.steps_per_epoch(world)
    told = Told({})
    for tenth in range(1, 1 + (1 if way is Attempt.undisturbed else epochs // EPOCHS_BETWEEN)):
        is_last = way is Attempt.undisturbed or tenth == epochs // EPOCHS_BETWEEN
        dies_at = -1 if is_last else tenth * EPOCHS_BETWEEN * per_epoch + per_epoch // 2
        before = wire.bytes_read

        def attempt(rank: int, dies_at: int = dies_at) -> Restarted:
            return way(Attempt(rank, world, size, folder, wire), epochs * per_epoch, dies_at)

        of_ranks = in_ranks(world, folder, attempt)
        if tenth > 1:
            told.ready_seconds.append(max(ready for ready, _, _ in of_ranks))
            told.step_seconds.append(max(stepped for _, stepped, _ in of_ranks))
            told.restart_bytes.append(max(read for _, _, read in of_ranks) - before)
    for line in (folder / "log").read_text().splitlines():
        number, loss = line.split()
        told.losses.setdefault(int(number), []).append(loss)
    return told
