"""Nodes whose outer tier is in trouble, or is a bucket; and how ranks end. Like nodes_at_work.py."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from nodes_at_work import on_node, protected, steps_in
from ranks_at_work import Training, in_ranks

import holdfast
from holdfast.engine import node_protection, together
from holdfast.engine.node_copies import NodeCopies
from holdfast.engine.node_tiers import NodeTiers
from holdfast.events import Event, FlushFailed
from holdfast.ranks.torch_store import TorchRankStore
from holdfast.stores.journal import read_events
from holdfast.stores.posix import PosixIO
from holdfast.stores.store import CheckpointStore
from holdfast.testing.forwarding_io import ForwardingIO
from holdfast.tiers import flusher

PATIENCE = 60.0


class SharedDisk(ForwardingIO):
    """What one node sees of the shared file system. While there is `trouble`, nothing can be written."""

    def __init__(self) -> None:
        super().__init__(PosixIO())
        self.trouble: int | None = None

    def _pass(self, verb: str, call: Any) -> Any:
        trouble = self.trouble
        if trouble is not None and verb in ("make_directory", "create", "preallocate", "write_at", "fsync"):
            raise OSError(trouble, os.strerror(trouble))
        return call()


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


class Rank:
    """One of two ranks, each on a node of its own, whose shared tier is the run's folder."""

    def __init__(self, base: Path, rank: int) -> None:
        on_node(rank)
        self.base, self.rank = base, rank
        self.disk = disk = SharedDisk()

        class OnSharedDisk(CheckpointStore):
            def __init__(self, where: str, **more: Any) -> None:
                super().__init__(where, io=disk, **more)

        # The run's own folder, which gets copies and nothing else.
        together.CheckpointStore = OnSharedDisk  # type: ignore[misc]
        flusher._FIRST_RETRY = 0.1
        self.said: list[str] = []
        listener = logging.Handler()
        listener.emit = lambda record: self.said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("holdfast").addHandler(listener)
        self.training = Training("none", rank)

    def open(self, limit: float) -> holdfast.Run:
        self.run = holdfast.Run(
            self.base / "run", tiers=[str(self.base / "caches"), "partner", "run every 2"], keep=50,
            every="1000 steps", wait_limit=limit, **self.training.tracked,
        )  # fmt: skip
        return self.run

    def save(self) -> None:
        self.training.step(torch.full((2, 5), float(self.rank)), torch.ones(2, 3))
        self.run.end_step()
        self.run.save_now().wait()
        protected(self.run)

    def when(self, is_so: Callable[[], bool]) -> None:
        """Rank 0 looks; the others go on when it does."""
        if self.rank == 0:
            until(is_so)
        dist.barrier()

    def here(self) -> list[int]:
        uuid = CheckpointStore(self.base / "run").uuid
        return steps_in(self.base / "caches" / uuid / f"n{self.rank}")

    def failures(self, step: int) -> list[str]:
        """What this rank was told about copies of that step."""
        return [line for line in self.said if f"-s{step:012d}-" in line and "failed" in line]

    def journal(self) -> list[str]:
        events: list[Event] = read_events(self.base / "run")
        return [event.error for event in events if isinstance(event, FlushFailed)]

    @property
    def shared(self) -> list[int]:
        return steps_in(self.base / "run")


def trouble(base: Path, number: int) -> dict[str, Any]:
    """The shared folder is full for all nodes, then read-only for one; both times it gets well again."""
    rank = Rank(base, number)
    with rank.open(20.0) as run:
        rank.save()
        rank.disk.trouble = errno.ENOSPC
        rank.save()
        rank.when(lambda: bool(rank.failures(2)))
        rank.save()
        told: dict[str, Any] = {
            "full": rank.failures(2),
            "full, here": rank.here(),
            "full, there": rank.shared,
        }
        rank.disk.trouble = None
        rank.when(lambda: rank.shared == [2])
        # How long rank 0 waits for the copies of the others.
        assert run._session is not None
        tiers = run._session._tiers
        assert isinstance(tiers, NodeTiers)
        tiers._copies._limit = 1.0
        rank.disk.trouble = errno.EROFS if number == 1 else None
        rank.save()
        rank.when(lambda: any("Read-only" in why for why in rank.failures(4)))
        rank.save()
        told |= {"read-only": rank.failures(4), "read-only, here": rank.here()}
        rank.disk.trouble = None
        rank.when(lambda: rank.shared == [2, 4])
    return told | {"end": rank.training.whole(), "there": rank.shared, "journal": rank.journal()}


def trouble_at_the_end(base: Path, number: int) -> dict[str, Any]:
    rank = Rank(base, number)
    with rank.open(3.0) as run:
        told: dict[str, Any] = {"start": rank.training.whole(), "step": run.step}
        rank.disk.trouble = errno.ENOSPC
        rank.save()
    told |= {"end": rank.training.whole(), "here": rank.here(), "there": rank.shared}
    return {**told, "said": rank.said}


def all_is_well(base: Path, number: int) -> dict[str, Any]:
    rank = Rank(base, number)
    with rank.open(20.0) as run:
        told = {"start": rank.training.whole(), "step": run.step}
    return {**told, "there": rank.shared}


def scenario_trouble(base: Path) -> dict[str, Any]:
    lives = (trouble, trouble_at_the_end, all_is_well)
    return {
        life.__name__: in_ranks(2, lambda rank, life=life: life(base, rank), base / "talk") for life in lives
    }  # type: ignore[misc]


def scenario_bucket(base: Path, bucket: str) -> dict[str, Any]:
    """Saved on two nodes and copied into a bucket; then everything is lost but the bucket."""

    def life(rank: int, node: int, die: bool) -> dict[str, Any]:
        on_node(node)
        training = Training("none", rank)
        tiers = [str(base / "caches-$HOLDFAST_NODE"), "partner", f"{bucket} every 2"]
        with holdfast.Run(
            base / "run", tiers=tiers, every="1000 steps", wait_limit=30.0, **training.tracked
        ) as run:
            found = None if run.resumed is None else dict(run.resumed.bytes_by_tier)
            told = {"step": run.step, "start": training.whole(), "read": found}
            while die:
                training.step(torch.full((2, 5), float(rank)), torch.ones(2, 3))
                run.end_step()
                run.save_now().wait()
                protected(run)
                if run.step == 3:
                    copies = run._session._tiers._copies  # type: ignore[union-attr]
                    for one in copies._outer.values():  # type: ignore[union-attr]
                        assert one.flusher is None or one.flusher.wait_idle(PATIENCE)
                    dist.barrier()
                    os.kill(os.getpid(), signal.SIGKILL)
                if run.step == 2:
                    (base / f"second-{rank}.json").write_text(json.dumps(training.whole()))
        return told

    in_ranks(2, lambda rank: life(rank, rank, True), base / "talk")
    saved = [json.loads((base / f"second-{rank}.json").read_text()) for rank in range(2)]
    for lost in ("run", "caches-n0", "caches-n1"):
        shutil.rmtree(base / lost)
    return {"saved": saved, "found": in_ranks(2, lambda rank: life(rank, rank + 5, False), base / "talk")}


def scenario_quiet(base: Path) -> dict[str, Any]:
    """Two ranks on nodes and four without. All but rank 0 take their time to tidy up at the end."""

    def life(rank: int, folder: Path, **more: Any) -> bool:
        on_node(rank)
        training = Training("none", rank)
        if rank:
            protect_until_the_end()
        with holdfast.Run(folder, every="1 step", wait_limit=20.0, **more, **training.tracked) as run:
            for _ in range(2):
                training.step(torch.ones(2, 5), torch.ones(2, 3))
                run.end_step()
            if rank:
                tidy_slowly()
        return True

    near = [str(base / "caches"), "partner", "run every 2"]
    two = in_ranks(2, lambda rank: life(rank, base / "two", tiers=near), base / "talk-two")
    four = in_ranks(4, lambda rank: life(rank, base / "four"), base / "talk-four")
    return {"ended": two + four}


def tidy_slowly() -> None:
    really = TorchRankStore.delete

    def slowly(store: TorchRankStore, key: str) -> None:
        time.sleep(0.2)
        really(store, key)

    TorchRankStore.delete = slowly  # type: ignore[method-assign]


def protect_until_the_end() -> None:
    """The first checkpoint is still being protected when this rank ends, and would go on if it were let."""
    protects, stops, ending = node_protection.protect, NodeCopies.stop, threading.Event()

    def protect(*given: Any, cancel: threading.Event, **more: Any) -> Any:
        until(lambda: ending.is_set() or cancel.is_set())
        return protects(*given, cancel=cancel, **more)

    def stop(copies: NodeCopies, limit: float) -> list[str]:
        if limit == 0.0:
            ending.set()
            time.sleep(0.3)
        return stops(copies, limit)

    node_protection.protect = protect
    NodeCopies.stop = stop  # type: ignore[method-assign]


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    "trouble": scenario_trouble,
    "bucket": scenario_bucket,
    "quiet": scenario_quiet,
}


if __name__ == "__main__":
    print(json.dumps(SCENARIOS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])))
