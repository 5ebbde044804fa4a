"""Ranks on several nodes that keep their own checkpoints: killed, robbed of folders, started again elsewhere.

A program of its own, like ranks_at_work.py. A node is a name, an address and a folder; its ranks are
processes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ranks_at_work import Training, in_ranks, train

import holdfast
from holdfast.checkpoints.find import committed
from holdfast.engine.node_tiers import NodeTiers
from holdfast.stores.directory import DirectoryStore
from holdfast.stores.journal import read_events
from holdfast.tiers.words import parse_tiers

SHARED = "run"
EPOCHS = 2


class Job:
    """One run on nodes of `per_node` ranks each."""

    def __init__(self, base: Path, kind: str, nodes: int, per_node: int, words: list[str]) -> None:
        self.base, self.kind, self.nodes, self.per_node, self.words = base, kind, nodes, per_node, words
        self.starts = 0

    @property
    def world(self) -> int:
        return self.nodes * self.per_node

    @property
    def run(self) -> Path:
        return self.base / "run"

    def start(
        self,
        *,
        die_at: int | None = None,
        nodes: int | None = None,
        per_node: int | None = None,
        **options: Any,
    ) -> list[Any]:
        """Train until every rank kills itself at the boundary of step `die_at`, or to the end."""
        self.starts += 1
        talk = self.base / f"talk-{self.starts}"
        nodes, each = nodes or self.nodes, per_node or self.per_node

        def work(rank: int) -> Any:
            on_node(rank // each)
            return train_on_nodes(self, talk, rank, die_at, **options)

        in_ranks(nodes * each, work, talk)
        told = [talk / f"told-{rank}.json" for rank in range(nodes * each)]
        return [json.loads(path.read_text()) if path.exists() else None for path in told]

    def cache_of(self, node: int) -> Path:
        tier = parse_tiers(self.words)[0]
        uuid = DirectoryStore(self.run).uuid
        base = f"/dev/shm/holdfast-{os.getuid()}/node-caches" if tier.kind == "memory" else tier.path
        return Path(base) / uuid / f"n{node}"

    def lose(self, node: int) -> None:
        shutil.rmtree(self.cache_of(node))

    def shared_steps(self) -> list[int]:
        return sorted(found.step for found in committed(DirectoryStore(self.run)))


def on_node(number: int) -> None:
    os.environ.update(HOLDFAST_NODE=f"n{number}", HOLDFAST_ADDRESS=f"127.0.0.{10 + number}")


def protected(run: holdfast.Run) -> None:
    """Until this node has done its share."""
    assert run._session is not None
    tiers = run._session._tiers
    assert isinstance(tiers, NodeTiers)
    assert tiers._protection.wait(30)


def train_on_nodes(
    job: Job, talk: Path, rank: int, die_at: int | None, save_every: int = 2, **options: Any
) -> dict[str, Any]:
    work = Training(job.kind, rank)
    tiers = parse_tiers(job.words)
    losses: list[Any] = []
    told: dict[str, Any] = {"losses": losses, "resumed": None}
    words = {"every": "1000 steps", "wait_limit": 20.0, "keep": 50, **options}

    def tell() -> None:
        (talk / f"told-{rank}.json").write_text(json.dumps(told))

    with holdfast.Run(job.run, tiers=tiers, **words, **work.tracked) as run:
        if run.resumed is not None:
            told["resumed"] = {
                "step": run.resumed.step, "tier": run.resumed.tier, "read": dict(run.resumed.bytes_by_tier),
                "rejected": list(run.resumed.rejected),
            }  # fmt: skip
        protected(run)
        for _ in run.epochs(EPOCHS):
            for _, x, y in run.batches(work.loader):
                loss = work.step(x, y)
                losses.append([run.step, loss.numpy().tobytes().hex()])
                run.end_step(loss=loss)
                if run.step % save_every == 0:
                    run.save_now().wait()
                    protected(run)
                if run.step == die_at:
                    tell()
                    os.kill(os.getpid(), signal.SIGKILL)
    told.update(whole=work.whole(), own=work.own(), step=run.step)
    tell()
    return told


def scenario_life(base: Path, kind: str, nodes: int, per_node: int, scheme: str, near: str) -> dict[str, Any]:
    """Killed and started again from the caches; then one node's folder is lost, then another one's; then one
    node too many."""
    world = nodes * per_node
    calm = in_ranks(world, lambda rank: train(base / "calm", kind, rank), base / "talk")
    local = str(base / "caches") if near == "disk" else near
    job = Job(base, kind, nodes, per_node, [local, scheme, "run every 3"])
    found: dict[str, Any] = {"calm": calm, "first": job.start(die_at=5)}
    found["shared before"] = job.shared_steps()
    found["cached"] = job.start(die_at=7)
    job.lose(nodes - 1)
    found["one lost"] = job.start(die_at=9)
    job.lose(0)
    found["another lost"] = job.start(die_at=11)
    found["shared then"] = job.shared_steps()
    for node in range(nodes):
        job.lose(node)
    found["all lost"] = job.start()
    found["shared at the end"] = job.shared_steps()
    found["caches at the end"] = [job.cache_of(node).exists() for node in range(nodes)]
    events = [(type(event).__name__, vars(event)) for event in read_events(job.run)]
    found["protected"] = [said["name"] for kind_, said in events if kind_ == "CheckpointProtected"]
    found["unprotected"] = [said for kind_, said in events if kind_ == "ProtectFailed"]
    return found


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    "life": lambda base, kind, nodes, per_node, scheme, near: scenario_life(
        base, kind, int(nodes), int(per_node), scheme, near
    ),
}


if __name__ == "__main__":
    print(json.dumps(SCENARIOS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])))
