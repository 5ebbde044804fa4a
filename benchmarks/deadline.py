"""Real time limits: how long before its deadline is the last checkpoint durable?

Each run trains until `deadline=` ends it, over a store whose saves take 0.1 to 5 s (a pause is added to the
real write). Late means a lost last checkpoint; early means paid time that was not trained.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import holdfast
from holdfast.events import SaveCommitted
from holdfast.stores.directory import DirectoryStore
from holdfast.stores.journal import read_events
from options import parse_options, scratch

STEP_SECONDS = 0.05


def run_once(folder: Path, save_seconds: float, limit: float, luck: random.Random) -> float:
    """Trains until the deadline. Returns by how many seconds the last checkpoint was early."""
    publish = DirectoryStore.publish

    def slow_publish(store: DirectoryStore, *arguments: Any) -> None:
        time.sleep(save_seconds * luck.uniform(0.75, 1.25))
        publish(store, *arguments)

    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    tracked = {"model": model, "optimizer": optimizer}
    deadline = time.time() + limit
    DirectoryStore.publish = slow_publish  # type: ignore[method-assign]
    try:
        with holdfast.Run(folder, deadline=f"@{deadline}", on_stop="return", **tracked) as run:
            for _ in run.steps(10**9):
                model(torch.ones(1, 64)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                time.sleep(STEP_SECONDS)
    finally:
        DirectoryStore.publish = publish  # type: ignore[method-assign]
    commits = [event.time for event in read_events(folder) if isinstance(event, SaveCommitted)]
    return deadline - commits[-1]


def main() -> None:
    options = parse_options(__doc__, repeats=50)
    luck = random.Random(0)
    rows = []
    with scratch(options) as folder:
        for number in range(options.repeats):
            save_seconds = 0.1 * 50 ** (number / max(options.repeats - 1, 1))
            # Room for the first save, which measures, and a few more.
            limit = 10 + 8 * save_seconds
            early = run_once(folder / str(number), save_seconds, limit, luck)
            rows.append({"save_seconds": save_seconds, "limit": limit, "early_seconds": early})
            print(
                f"saves of {save_seconds:5.2f} s: last checkpoint durable {early:6.2f} s before the deadline"
            )
    late = sum(row["early_seconds"] < 0 for row in rows)
    share = [row["early_seconds"] / (1.25 * row["save_seconds"]) for row in rows]
    print(
        f"{len(rows) - late} of {len(rows)} in time; early by {statistics.median(share):.2f} x p99 (median)"
    )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "deadline.json").write_text(json.dumps({"late": late, "runs": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
