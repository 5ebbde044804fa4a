"""A process that stages and seals memory-tier slots as fast as it can until it is killed.

Started once; each attempt is a fork, killed by its parent at a random instant. Imports no torch.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time

import numpy as np

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.read import read_files
from holdfast.checkpoints.write import CheckpointDraft, write_checkpoint
from holdfast.errors import CorruptCheckpoint, StoreError
from holdfast.tiers.memory import MemoryTier

UUID = "0a1b2c3d-0000-4000-8000-000000000001"
SIZES = {"model.bin": (1 << 20) + 77, "state.bin": 5000}


class Staged:
    concurrent = True

    def __init__(self, name: str, size: int, view: memoryview) -> None:
        self.name, self.size, self._view = name, size, view

    def view(self, start: int, stop: int) -> memoryview:
        return self._view[start:stop]


def fill(step: int, file: str) -> int:
    return (step * 31 + len(file)) % 251


def write_for_ever(root: str, epoch: int, step: int, progress: int) -> None:
    tier = MemoryTier(UUID, root=root)
    tier.claim()
    while True:
        step += 1
        slot = tier.next_slot()
        assert slot is not None
        tier.reopen(slot)
        staged = []
        for file, size in SIZES.items():
            memory = tier.allocate(slot, file, size)
            np.frombuffer(memory.view, np.uint8)[:size] = fill(step, file)
            staged.append(Staged(file, size, memory.view))
        write_checkpoint(
            tier, CheckpointDraft(writer_epoch=epoch, step=step, created="now", reason="test"), staged
        )
        os.write(progress, step.to_bytes(8, "little"))


def newest_intact(root: str) -> tuple[int, list[str]]:
    """The step of the newest checkpoint, and everything that was sealed and is not whole."""
    tier, problems, steps = MemoryTier(UUID, root=root), [], []
    for found in committed(tier):
        try:
            files = read_files(tier, found, threads=1)
        except (CorruptCheckpoint, StoreError) as error:
            problems.append(str(error))
            continue
        for file, view in files.items():
            if not (np.frombuffer(view, np.uint8) == fill(found.step, file)).all():
                problems.append(f"{file} of step {found.step} has the bytes of another step")
        steps.append(found.step)
    return max(steps, default=0), problems


def main(root: str, kills: int, seed: int) -> None:
    luck = random.Random(seed)
    step, problems, lives = 0, [], []
    for epoch in range(1, kills + 1):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                write_for_ever(root, epoch, step, writing)
            finally:
                os._exit(1)
        os.close(writing)
        time.sleep(luck.uniform(0.01, 0.12))
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        said = b""
        while piece := os.read(reading, 1 << 16):
            said += piece
        os.close(reading)
        acknowledged = int.from_bytes(said[-8:], "little") if said else step
        newest, torn = newest_intact(root)
        problems += torn
        if not os.WIFSIGNALED(status):
            problems.append(f"life {epoch} ended by itself")
        # The one being overwritten is the one before the newest, never the newest.
        if newest not in (acknowledged, acknowledged + 1):
            problems.append(f"life {epoch}: step {acknowledged} was sealed, step {newest} is the newest left")
        lives.append(newest - step)
        step = newest
    print(json.dumps({"problems": problems, "kills": kills, "saves": step, "by_life": lives}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
