"""Restart from what the nodes keep, against the shared folder: every rank reads it, or rank 0 for everybody.

Two nodes of one rank each, and each rank has a state of its own, as under FSDP. The shared folder gives
200 MB/s in all, divided among those who read (a token bucket in front of its files). Measured is the time
until every rank is restored, all variants in turn.
"""

from __future__ import annotations

import os
import shutil
import statistics
import threading
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.distributed as dist

import holdfast
from holdfast.stores.base import StoredFile
from holdfast.stores.store import CheckpointStore
from holdfast.testing.store_contract import newest_valid
from holdfast.tiers.bandwidth import Bandwidth
from node_ranks import die, in_ranks, model_of, node_tiers, tell
from options import parse_options, scratch
from scoreboard import Scoreboard

NODES = 2
SHARED_BYTES_PER_SECOND = 200_000_000
CACHES = ("memory", "disk")


class ThrottledFile:
    """A file behind a wire that all files of this process share."""

    wire = Bandwidth(None)
    turn = threading.Lock()

    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self.size = file.size

    def read_into(self, offset: int, buffer: memoryview) -> None:
        with self.turn:
            self.wire.take(len(buffer), threading.Event())
        self._file.read_into(offset, buffer)

    def close(self) -> None:
        self._file.close()


def throttle_shared_folder(readers: int) -> None:
    real = CheckpointStore.open
    share = SHARED_BYTES_PER_SECOND // readers
    ThrottledFile.wire = Bandwidth(share)
    # An empty bucket: no second of grace at the start.
    ThrottledFile.wire.take(share, threading.Event())
    CheckpointStore.open = lambda self, name, file: ThrottledFile(real(self, name, file))  # type: ignore[assignment,method-assign,return-value]


def tiers_of(folder: Path, cache: str) -> list[str] | None:
    near = "memory" if cache == "memory" else str(folder / "caches")
    return None if cache == "none" else [near, "single", "run every 1"]


def save(folder: Path, cache: str, megabytes: int, rank: int) -> None:
    model, optimizer = model_of(megabytes, shared=False)
    with holdfast.Run(
        folder / f"run-{cache}", tiers=tiers_of(folder, cache), every="100000 steps", wait_limit=60.0,
        model=model, optimizer=optimizer,
    ) as run:  # fmt: skip
        model(torch.randn(4, 512)).sum().backward()
        optimizer.step()
        run.end_step()
        run.save_now().wait()
        if cache != "none":
            node_tiers(run)._copies.stop(60.0)
        tell(folder, rank, None)
        dist.barrier()
        die()


def restart(folder: Path, cache: str, megabytes: int, rank: int) -> None:
    """How long until this rank is restored, and what all ranks read from which tier."""
    model, optimizer = model_of(megabytes, shared=False)
    dist.barrier()
    throttle_shared_folder(NODES)
    with holdfast.Run(
        folder / f"run-{cache}", tiers=tiers_of(folder, cache), every="100000 steps", wait_limit=60.0,
        model=model, optimizer=optimizer,
    ) as run:  # fmt: skip
        assert run.resumed is not None
        tell(folder, rank, [run.resumed.seconds, dict(run.resumed.bytes_by_tier)])
        dist.barrier()
        die()


def root_restart(folder: Path, rank: int) -> Any:
    """Rank 0 reads everything from the shared folder and sends it to all."""
    dist.barrier()
    throttle_shared_folder(1)
    begun = time.monotonic()
    store = CheckpointStore(folder / "run-none")
    loaded = newest_valid(store) if rank == 0 else None
    names = [[(name, len(view)) for name, view in loaded.files.items()] if loaded else None]
    dist.broadcast_object_list(names)
    for name, size in names[0] or ():
        if loaded is not None:
            state = torch.frombuffer(loaded.files[name], dtype=torch.uint8)
        else:
            state = torch.empty(size, dtype=torch.uint8)
        dist.broadcast(state, 0)
    dist.barrier()
    return [time.monotonic() - begun, {}]


def main() -> None:
    options = parse_options(__doc__, repeats=5)
    megabytes = 60 if options.quick else 600
    seconds: dict[str, list[float]] = {}
    shared_bytes = []
    with scratch(options) as folder:
        try:
            for cache in (*CACHES, "none"):
                in_ranks(NODES, folder, lambda rank, cache=cache: save(folder, cache, megabytes, rank))
            for _ in range(options.repeats):
                for cache in (*CACHES, "none"):
                    told = in_ranks(
                        NODES, folder, lambda rank, cache=cache: restart(folder, cache, megabytes, rank)
                    )
                    seconds.setdefault(cache, []).append(max(one[0] for one in told))
                    if cache != "none":
                        shared_bytes.append(float(told[0][1]["run"]))
                told = in_ranks(NODES, folder, lambda rank: root_restart(folder, rank))
                seconds.setdefault("root", []).append(max(one[0] for one in told))
        finally:
            give_memory_back(folder / "run-memory")
    report(seconds, shared_bytes, megabytes, options)


def give_memory_back(run: Path) -> None:
    uuid = CheckpointStore(run).uuid
    shutil.rmtree(f"/dev/shm/holdfast-{os.getuid()}/node-caches/{uuid}", ignore_errors=True)


def report(seconds: dict[str, list[float]], shared_bytes: list[float], megabytes: int, options: Any) -> None:
    board = Scoreboard("cached_restart", f"Restart of {NODES} nodes, {megabytes} MB each", options)
    names = {
        "memory": "caches in memory", "disk": "caches on disk", "none": "shared folder, every rank reads",
        "root": "shared folder, rank 0 reads and sends",
    }  # fmt: skip
    for which, name in names.items():
        board.add(name, "until every rank is restored", "s", seconds[which])
    middle = {which: statistics.median(samples) for which, samples in seconds.items()}
    board.at_most("bytes that a cached restart reads from the shared tier", max(shared_bytes), 0.0, "B")
    board.at_most("cached restart (disk) against root restart", middle["disk"] / middle["root"], 1.0)
    board.at_least("memory caches against the shared folder", middle["none"] / middle["memory"], 5.0)
    board.finish()


if __name__ == "__main__":
    main()
