"""One rank of three is killed in the middle of a save, and the others have all the time of the world."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import ranks_at_work as ranks
import torch
import torch.distributed as dist
from torch import nn

import holdfast
from holdfast.stores.store import CheckpointStore


def train(folder: Path, rank: int, victim: int, ending: str) -> dict[str, Any]:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    real = CheckpointStore.write
    told: list[str] = []

    def killed(self: CheckpointStore, name: str, source: Any) -> Any:
        if "-s000000000002-" in name:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, name, source)

    if rank == victim:
        CheckpointStore.write = killed  # type: ignore[method-assign]
    dist.barrier()
    try:
        loop(folder, model, optimizer, ending, told)
    except holdfast.HoldfastError as error:
        # Its last state could not be saved, of course.
        told.append(str(error))
    return {"told": told}


def loop(folder: Path, model: nn.Module, optimizer: Any, ending: str, told: list[str]) -> None:
    with holdfast.Run(folder, every="1000 steps", model=model, optimizer=optimizer, on_stop="return") as run:
        for _ in run.steps(9):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.end_step()
            handle = run.save_now()
            if run.step == 2:
                if ending == "SIGTERM":
                    # The save is under way, and so it is when the run ends.
                    os.kill(os.getpid(), signal.SIGTERM)
                    continue
                try:
                    handle.wait()
                except holdfast.HoldfastError as error:
                    told.append(str(error))
                break
            handle.wait()


def serve(port: int) -> int:
    """The ranks' store in a process of its own, as torchrun has it: it outlives every rank."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        store = dist.TCPStore("127.0.0.1", port, None, True, wait_for_workers=False)
        os.write(told, b".")
        threading.Event().wait(300)
        del store
        os._exit(0)
    os.read(ready, 1)
    return child


def main(base: Path, victim: str, ending: str) -> dict[str, Any]:
    port = ranks.free_port()
    ranks.free_port = lambda: port
    server = serve(port)
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    try:
        answers = ranks.in_ranks(
            3, lambda rank: train(base / "run", rank, int(victim), ending), base / "talk", limit=90
        )
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
    return {"answers": answers}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[2]), *sys.argv[3:])))
