"""Two ranks, one of which computes losses that are not finite from a step on."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import ranks_at_work as ranks
import torch
from torch import nn

import holdfast


def train(folder: Path, rank: int, victim: int, on_nan: Any, bad_from: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = holdfast.Run(folder, every="1 step", on_nan=on_nan, wait_limit=60, model=model, optimizer=optimizer)
    code: Any = 0
    try:
        with run:
            for _ in run.steps(12):
                is_bad = rank == victim and run.step + 1 >= bad_from
                loss = model(torch.ones(1, 3)).pow(2).sum() * (math.nan if is_bad else 1.0)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.end_step(loss=loss)
    except SystemExit as left:
        code = left.code
    return {"step": run.step, "code": code, "resumed": run.resumed.step if run.resumed else 0}


def main(base: Path, victim: str, on_nan: str) -> dict[str, Any]:
    os.environ.pop("HOLDFAST_ATTEMPT", None)

    def attempt(number: int, bad_from: int) -> Any:
        return ranks.in_ranks(
            2,
            lambda rank: train(base / "run", rank, int(victim), on_nan, bad_from),
            base / f"talk{number}",
            limit=150,
        )

    return {"first": attempt(1, 5), "second": attempt(2, 99)}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[2]), *sys.argv[3:])))
