"""One training that saves without end: what it holds in memory, descriptors, threads and on disk stays flat.

python soak.py 3600        # for so many seconds; prints one JSON line
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import torch
from torch import nn

import holdfast
from holdfast.tiers.memory_folder import default_root

SAMPLES = 24


def bytes_below(*folders: Path) -> int:
    """While a trainer writes and prunes: what vanishes during the walk counts for nothing."""
    total = 0
    for folder in folders:
        for parent, _, files in os.walk(folder):
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    total += os.stat(os.path.join(parent, name)).st_blocks * 512
    return total


def held(run: Path, outer: Path, memory: Path) -> dict[str, int]:
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * 4096
    return {
        "memory": resident,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "disk": bytes_below(run, outer),
        "shared memory": bytes_below(memory),
    }


def main(seconds: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(64, 512))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    samples: list[dict[str, int]] = []
    saves = 0
    with tempfile.TemporaryDirectory() as name:
        home, outer = Path(name) / "run", Path(name) / "outer"
        begun = time.monotonic()
        with holdfast.Run(
            home, every="7 steps", keep=2, tiers=["memory", "run", f"{outer} every 5"],
            model=model, optimizer=optimizer,
        ) as run:  # fmt: skip
            from holdfast.stores.store import CheckpointStore

            memory = Path(default_root()) / CheckpointStore(home).uuid
            for _ in run.epochs(10**9):
                for (x,) in run.batches(loader):
                    loss = nn.functional.mse_loss(model(x), x)
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    run.end_step(loss=loss)
                age = time.monotonic() - begun
                # A fifth of the time is for warming up: buffers, caches, the first prunes.
                if age > seconds * (0.2 + 0.8 * len(samples) / SAMPLES):
                    samples.append(held(home, outer, memory))
                if age > seconds and len(samples) >= SAMPLES:
                    break
            saves = run.step // 7
    half = len(samples) // 2
    # Medians of two halves: what is pruned between two looks must not decide.
    medians = [
        {key: sorted(sample[key] for sample in part)[len(part) // 2] for key in samples[0]}
        for part in (samples[:half], samples[half:])
    ]
    growth = {key: medians[1][key] / max(medians[0][key], 1) - 1 for key in samples[0]}
    print(json.dumps({"seconds": seconds, "saves": saves, "held": medians[1], "growth": growth}))


if __name__ == "__main__":
    main(float(sys.argv[1]))
