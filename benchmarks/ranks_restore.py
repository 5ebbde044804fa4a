"""Restoring one of very many ranks: what it reads and how long it takes, by how many ranks saved.

The checkpoint is simulated: every rank's record and image as FSDP2 would have them, held in memory. What is
measured is a rank's own work, in seconds of the processor: reading and checking records, finding its rows,
filling its tensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from holdfast.capture.torch_registry import track
from holdfast.engine.torch_sharded_load import load_sharded
from holdfast.testing.torch_many_ranks import ManyRanks, live_model
from options import parse_options
from scoreboard import Scoreboard

SAME, OTHER, WHOLE = "as many ranks", "three quarters of them", "one process, everything"


@contextmanager
def one_of(world: int, rank: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def seconds_as_rank(saved: ManyRanks, rows: int, tensors: int, world: int, repeats: int) -> list[float]:
    rank = world // 2
    with one_of(world, rank):
        tracked = track({"model": live_model(world, rows, tensors)})
        return [
            _timed(lambda: load_sharded(saved, saved.found, tracked, rank, world)) for _ in range(repeats)
        ]


def seconds_whole(saved: ManyRanks, world: int) -> float:
    return _timed(lambda: load_sharded(saved, saved.found, (), 0, world))


def _timed(work: Callable[[], object]) -> float:
    # Of the processor: there is no disk in this, and the machine may be busy with other things.
    begin = time.process_time()
    work()
    return time.process_time() - begin


def main() -> None:
    options = parse_options(__doc__, repeats=1)
    tensors = 100 if options.quick else 1000
    worlds = (16, 32, 64) if options.quick else (512, 1024)
    board = Scoreboard("ranks_restore", f"Restoring one of many ranks, {tensors} tensors", options)
    for world in worlds:
        saved = ManyRanks(world, tensors)
        name = f"{world} ranks saved"
        for how, now in ((SAME, world), (OTHER, world * 3 // 4)):
            saved.opened.clear()
            board.add(name, how, "s", seconds_as_rank(saved, world, tensors, now, options.repeats))
            records = sum(n for file, n in saved.opened.items() if file.startswith("rank-"))
            board.add(name, f"{how}: records read", "", [records / options.repeats])
        board.add(name, WHOLE, "s", [seconds_whole(saved, world)])
    most = f"{worlds[-1]} ranks saved"
    board.at_most(f"{worlds[-1]} ranks, restored by as many", board.median(most, SAME), 5.0, "s")
    board.at_most(f"{worlds[-1]} ranks, restored by three quarters", board.median(most, OTHER), 30.0, "s")
    growth = board.median(most, WHOLE) / board.median(f"{worlds[-2]} ranks saved", WHOLE)
    board.at_most("everything: twice the ranks take", growth, 2.5)
    board.finish()


if __name__ == "__main__":
    main()
