"""The memory tier against what staging uses without it, and against the disk: copy in, seal, restore.

All in one process and interleaved, because the speed of memory on a virtual machine changes from run to run.
"""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import torch

from holdfast.checkpoints.write import CheckpointDraft, write_checkpoint
from holdfast.staging.slots import HostMemory, ImageBytes, anonymous_memory
from holdfast.stores.store import CheckpointStore
from holdfast.testing.store_contract import newest_valid
from holdfast.tiers.ladder import Ladder, NamedTier
from holdfast.tiers.memory import MemoryTier
from options import parse_options, scratch
from scoreboard import Scoreboard

FILE = "state.bin"
SHMEM_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


def seconds(work: Callable[[], object]) -> float:
    gc.collect()
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def copy_into(memory: HostMemory, state: torch.Tensor) -> float:
    target = torch.frombuffer(memory.view, dtype=torch.uint8)[: state.numel()]
    return seconds(lambda: target.copy_(state))


def save(store: CheckpointStore | MemoryTier, memory: HostMemory, size: int, step: int) -> float:
    draft = CheckpointDraft(writer_epoch=1, step=step, created="now", reason="bench")
    return seconds(lambda: write_checkpoint(store, draft, [ImageBytes(FILE, size, memory)]))


def restore(store: CheckpointStore | MemoryTier | Ladder) -> float:
    return seconds(lambda: newest_valid(store))


def main() -> None:
    options = parse_options(__doc__, repeats=7)
    size = (64 << 20) if options.quick else (1 << 30)
    state = torch.randint(0, 255, (size,), dtype=torch.uint8)
    root = f"/dev/shm/holdfast-bench-{os.getpid()}"
    found: dict[tuple[str, str], list[float]] = {}

    def note(who: str, what: str, value: float) -> None:
        found.setdefault((who, what), []).append(value)

    try:
        with scratch(options) as folder, CheckpointStore(folder / "run") as disk:
            disk.claim()
            tier = MemoryTier(disk.uuid, root=root)
            tier.claim()
            plain: list[HostMemory] = []
            shared: list[HostMemory] = []
            note("anonymous", "make a slot", seconds(lambda: plain.append(anonymous_memory(size))))
            note("anonymous", "first copy into it", copy_into(plain[0], state))
            note("memory tier", "make a slot", seconds(lambda: shared.append(_slot(tier, size))))
            note("memory tier", "first copy into it", copy_into(shared[0], state))
            ladder = Ladder([NamedTier("memory", tier), NamedTier("disk", disk)])
            for step in range(1, options.repeats + 1):
                note("anonymous", "copy", copy_into(plain[0], state))
                tier.reopen(0)
                note("memory tier", "copy", copy_into(shared[0], state))
                note("disk", "durable save", save(disk, plain[0], size, step))
                note("memory tier", "save: digest and seal", save(tier, shared[0], size, step))
                note("disk", "restore", restore(disk))
                note("memory tier", "restore", restore(tier))
                note("memory tier", "restore through the ladder", restore(ladder))
                for old in sorted(disk.names())[:-1]:
                    disk.retire(old)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    board = Scoreboard("memory_tier", f"An image of {size / 1e9:.2f} GB in shared memory", options)
    for (who, what), samples in found.items():
        board.add(who, what, "s", samples)
    pages = SHMEM_PAGES.read_text().strip() if SHMEM_PAGES.exists() else "unknown"
    board.notes.append(f"huge pages in shared memory: {pages}")
    ratio = board.median
    board.at_most(
        "a copy into the tier, against anonymous huge pages",
        ratio("memory tier", "copy") / ratio("anonymous", "copy"),
        1.3,
    )
    board.at_most(
        "a save to memory, against the disk",
        ratio("memory tier", "save: digest and seal") / ratio("disk", "durable save"),
        0.5,
    )
    board.at_most(
        "a restore from memory, against the disk",
        ratio("memory tier", "restore") / ratio("disk", "restore"),
        1.0,
    )
    board.finish()


def _slot(tier: MemoryTier, size: int) -> HostMemory:
    memory = tier.allocate(0, FILE, size)
    return HostMemory(memory.view, memory.keep_alive)


if __name__ == "__main__":
    main()
