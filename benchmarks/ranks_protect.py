"""What protecting against lost nodes costs training: step times with and without it, in turn, in one run.

Two nodes of one rank each. Every block of steps has one save; in every other block the nodes protect each
other's files behind it. Both nodes share this machine's cores and its disk, which real ones do not.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.distributed as dist

import holdfast
from holdfast.engine.node_protection import Protection
from node_ranks import in_ranks, model_of, node_tiers
from options import parse_options, scratch
from scoreboard import Scoreboard

NODES = 2
SCHEMES = ("partner", "xor:2")


def train(folder: Path, scheme: str, megabytes: int, seconds: float, blocks: int) -> dict[str, list[float]]:
    """Seconds per step of each block, by whether it was protected."""
    model, optimizer = model_of(megabytes, shared=True)
    submit = Protection.submit
    is_on = False
    Protection.submit = lambda self, name: submit(self, name) if is_on else None  # type: ignore[method-assign]
    found: dict[str, list[float]] = {"with": [], "without": []}
    batch = torch.randn(256, 512)
    with holdfast.Run(
        folder / "run", tiers=[str(folder / "caches"), scheme, "run every 1000"], every="100000 steps",
        wait_limit=60.0, model=model, optimizer=optimizer,
    ) as run:  # fmt: skip
        tiers = node_tiers(run)

        def block(steps: int) -> float:
            dist.barrier()
            begun = time.perf_counter()
            handle = run._require_open().saves.now("measured", by_name=False)
            for _ in range(steps):
                model(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                run.end_step()
            spent = (time.perf_counter() - begun) / steps
            handle.wait()
            assert tiers._protection.wait(60.0)
            # Every save is to be protected, or none: rank 0 must not take an unprotected one for unfinished.
            tiers._rhythm.pending = None
            return spent

        each = block(5)
        block(5)
        steps = torch.tensor([max(int(seconds / each), 5)])
        dist.broadcast(steps, 0)
        for number in range(2 * blocks):
            # on off, off on: a machine that gets slower with time does so for both.
            is_on = number % 4 in (0, 3)
            found["with" if is_on else "without"].append(block(int(steps.item())))
    return found


def main() -> None:
    options = parse_options(__doc__, repeats=8)
    megabytes, seconds = (30, 1.0) if options.quick else (90, 6.0)
    board = Scoreboard(
        "ranks_protect",
        f"Steps while {NODES} nodes protect {megabytes} MB, one save per {seconds:g} s",
        options,
    )
    for scheme in SCHEMES:
        with scratch(options) as folder:
            told = in_ranks(
                NODES,
                folder,
                lambda rank, scheme=scheme, folder=folder: train(
                    folder, scheme, megabytes, seconds, options.repeats
                ),
            )
        # A step is as long as that of the slowest rank.
        slowest = {
            which: [max(pair) for pair in zip(*(one[which] for one in told), strict=True)]
            for which in ("without", "with")
        }
        for which, samples in slowest.items():
            board.add(f"{scheme}: {which} protection", "seconds per step", "s", samples)
        # Neighbours are compared: the machine's own pace changes more over minutes than by this.
        pairs = zip(slowest["with"], slowest["without"], strict=True)
        ratio = statistics.median(one / other for one, other in pairs)
        board.at_most(f"{scheme}: a step with protection behind it", ratio, 1.05)
    board.finish()


if __name__ == "__main__":
    main()
