"""Real time limits: how long before its deadline is the last checkpoint durable?

Each run trains until `deadline=` ends it, over a store whose saves take 0.1 to 5 s (a pause is added to the
real write). Late means a lost last checkpoint; early means paid time that was not trained.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import torch

import holdfast
from holdfast.events import SaveCommitted
from holdfast.stores.journal import read_events
from holdfast.stores.store import CheckpointStore
from options import parse_options, scratch
from scoreboard import Scoreboard

STEP_SECONDS = 0.05


def run_once(folder: Path, save_seconds: float, limit: float, luck: random.Random) -> float:
    """Trains until the deadline. Returns by how many seconds the last checkpoint was early."""
    publish = CheckpointStore.publish

    def slow_publish(store: CheckpointStore, *arguments: Any) -> None:
        time.sleep(save_seconds * luck.uniform(0.75, 1.25))
        publish(store, *arguments)

    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    tracked = {"model": model, "optimizer": optimizer}
    deadline = time.time() + limit
    CheckpointStore.publish = slow_publish  # type: ignore[method-assign]
    try:
        with holdfast.Run(folder, deadline=f"@{deadline}", on_stop="return", **tracked) as run:
            for _ in run.steps(10**9):
                model(torch.ones(1, 64)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                time.sleep(STEP_SECONDS)
    finally:
        CheckpointStore.publish = publish  # type: ignore[method-assign]
    commits = [event.time for event in read_events(folder) if isinstance(event, SaveCommitted)]
    return deadline - commits[-1]


def main() -> None:
    options = parse_options(__doc__, repeats=50)
    luck = random.Random(0)
    early: list[float] = []
    share: list[float] = []
    with scratch(options) as folder:
        for number in range(options.repeats):
            save_seconds = 0.1 * 50 ** (number / max(options.repeats - 1, 1))
            # Room for the first save, which measures, and a few more.
            limit = 10 + 8 * save_seconds
            early.append(run_once(folder / str(number), save_seconds, limit, luck))
            share.append(early[-1] / (1.25 * save_seconds))
            print(f"saves of {save_seconds:.2f} s: durable {early[-1]:.2f} s before the deadline", flush=True)
    board = Scoreboard("deadline", "The last checkpoint before a time limit, saves of 0.1 to 5 s", options)
    board.add("holdfast", "durable before the deadline", "s", early)
    board.add("holdfast", "that, against the longest save", "x", share)
    board.at_most("last checkpoints that came too late", float(sum(one < 0 for one in early)), 0.0, "")
    board.finish()


if __name__ == "__main__":
    main()
