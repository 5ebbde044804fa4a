"""A training with tiers that can kill itself while a save is on its way to the disk."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from typing import Any

import torch

import holdfast
from holdfast.stores.store import CheckpointStore

STEPS = 10


def main(path: str, tiers: str, die_at: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(50, 50)
    optimizer = torch.optim.AdamW(model.parameters())
    words: dict[str, Any] = {"tiers": json.loads(tiers)} if tiers else {}
    publish = CheckpointStore.publish

    def die(store: CheckpointStore, name: str, manifest: bytes) -> None:
        if run.step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        publish(store, name, manifest)

    CheckpointStore.publish = die  # type: ignore[method-assign]
    with holdfast.Run(path, every="1000 steps", **words, model=model, optimizer=optimizer) as run:
        resumed = run.resumed
        print(json.dumps([resumed.step, resumed.tier] if resumed else None), flush=True)
        while run.step < STEPS:
            model(torch.randn(4, 50)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.end_step()
            run.save_now("each step").wait()
    print(hashlib.sha256(repr([p.tolist() for p in model.parameters()]).encode()).hexdigest())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
