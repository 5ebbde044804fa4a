"""The training that `goodput.py` starts and kills: 50 MB of state, about 50 ms a step, one or two ranks.

A step is a real forward and backward pass over a few samples, a real AdamW over the whole state, and then a
wait (`time.sleep`), as a host waits for its accelerator. So a rank needs about a quarter of a core and not a
whole one, several trainings fit beside each other, and whatever a save takes from the host still makes the
step longer: the wait does not shrink by it.

Arguments: folder, way, number of steps. Every finished step is one record in the log, written at once, so
that a SIGKILL takes none of them: step, when it ended, whether a save was under way.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

RECORD = struct.Struct("<qd?7x")
# What `way` means to a Run. "torch.save" is the loop that people write without us.
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "checkfreq": {"policy": "checkfreq"},
    "every 1 s": {"every": "1 s"},
    "every 10 s": {"every": "10 s"},
    "every 60 s": {"every": "60 s"},
    "every 10 min": {"every": "10 min"},
}
STEPS_PER_EPOCH = 200
SAMPLES = 4
WAIT = 0.035  # seconds a step


class Log:
    """Rank 0's account of what was done."""

    def __init__(self, folder: Path, rank: int) -> None:
        (folder / f"pid-{rank}").write_text(str(os.getpid()))
        self._file = os.open(folder / "steps", os.O_WRONLY | os.O_APPEND | os.O_CREAT) if rank == 0 else None

    def step(self, number: int, beside_save: bool) -> None:
        if self._file is not None:
            os.write(self._file, RECORD.pack(number, time.time(), beside_save))


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 2048), nn.GELU(), nn.Linear(2048, 1024))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    time.sleep(WAIT)


def with_torch_save(folder: Path, steps: int, log: Log, rank: int) -> None:
    model, optimizer = build()
    wrapped = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    path, first = folder / "state.pt", 0
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    x = torch.randn(SAMPLES, 1024)
    for number in range(first + 1, steps + 1):
        train_step(wrapped, optimizer, x)
        ends_epoch = number % STEPS_PER_EPOCH == 0
        if ends_epoch and rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": number}
            torch.save(state, folder / "state.part")
            os.replace(folder / "state.part", path)
        log.step(number, ends_epoch)


def with_holdfast(folder: Path, way: str, steps: int, log: Log) -> None:
    from holdfast import Run

    model, optimizer = build()
    wrapped = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    x = torch.randn(SAMPLES, 1024)
    with Run(folder / "run", **WAYS[way], model=model, optimizer=optimizer) as run:
        for _ in run.steps(steps):
            beside = run.policy.save_pending
            train_step(wrapped, optimizer, x)
            run.end_step()
            log.step(run.step, beside or run.policy.save_pending)


def main() -> None:
    folder, way, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    log = Log(folder, rank)
    if way == "torch.save":
        with_torch_save(folder, steps, log, rank)
    else:
        with_holdfast(folder, way, steps, log)


if __name__ == "__main__":
    main()
