"""What a save costs the training thread as ranks are added: the same state on every rank, 1, 2 and 4 of them.

Ranks are processes on this one machine, one compute thread each, and keep to one core each, as on nodes that
have cores for all of them. Where ranks share a core, each gets its part of it: whatever takes time, a save
or a step, takes that much longer. Now and then one has to wait for a whole slice of the scheduler in a save;
the mean over ranks and saves has that in it, and the slowest rank of each save is reported beside it.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.distributed as dist

import holdfast
from options import parse_options, scratch
from scoreboard import Scoreboard

WORLDS = (1, 2, 4)
CORES = os.cpu_count() or 1


def train(folder: Path, rank: int, world: int, saves: int, megabytes: int) -> list[float]:
    """Seconds that each save took from the training thread: the call, and what the fence waited."""
    os.sched_setaffinity(0, {rank % CORES})
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    layers = [torch.nn.Linear(512, 512) for _ in range(megabytes // 3)]  # 1 MB each, with AdamW 3
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    found = []
    with holdfast.Run(
        folder, every="100000 steps", copy="overlapped", wait_limit=60.0, model=model, optimizer=optimizer
    ) as run:
        for step in run.steps(4 * (saves + 2)):
            model(torch.randn(64, 512)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.end_step()
            if step % 4 == 0:
                if world > 1:
                    dist.barrier()
                handle = run._require_open().saves.now("measured", by_name=False)
            if step % 4 == 3:
                handle.wait()
                found.append(handle.stall_seconds)
    return found[2:]  # the first two lay out images and touch new memory


def in_ranks(world: int, folder: Path, saves: int, megabytes: int) -> list[list[float]]:
    """The stalls of each save, by rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                if world > 1:
                    dist.init_process_group(
                        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
                    )
                answer = train(folder / "run", rank, world, saves, megabytes)
                (folder / f"stalls-{rank}").write_text(json.dumps(answer))
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    each = [json.loads((folder / f"stalls-{rank}").read_text()) for rank in range(world)]
    return [list(of_one_save) for of_one_save in zip(*each, strict=True)]


def main() -> None:
    options = parse_options(__doc__, repeats=5)
    saves, megabytes = (3, 30) if options.quick else (6, 150)
    mean: dict[int, list[float]] = {world: [] for world in WORLDS}
    slowest: dict[int, list[float]] = {world: [] for world in WORLDS}
    for number in range(options.repeats):
        for world in WORLDS if number % 2 == 0 else reversed(WORLDS):
            with scratch(options) as folder:
                found = in_ranks(world, folder, saves, megabytes)
            mean[world].append(statistics.mean(stall for of_one_save in found for stall in of_one_save))
            slowest[world].append(statistics.median(max(of_one_save) for of_one_save in found))
    board = Scoreboard("ranks_stall", f"Stall per save, {megabytes} MB of state per rank", options)
    for world in WORLDS:
        name = f"{world} rank{'s' if world > 1 else ''}"
        board.add(name, "stall, mean of ranks and saves", "s", mean[world])
        board.add(name, "stall of the slowest rank", "s", slowest[world])
    for world in WORLDS[1:]:
        share = max(1.0, world / CORES)
        ratio = statistics.median(mean[world]) / statistics.median(mean[1]) / share
        board.at_most(f"stall with {world} ranks, per share of a core, against one", ratio, 1.5)
    board.finish()


if __name__ == "__main__":
    main()
