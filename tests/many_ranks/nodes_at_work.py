"""Ranks on several nodes that keep their own checkpoints: killed, robbed of folders, started again elsewhere.

A program of its own, like ranks_at_work.py. A node is a name, an address and a folder; its ranks are
processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ranks_at_work
import torch
import torch.distributed as dist
from ranks_at_work import Training, in_ranks, train

import holdfast
from holdfast.checkpoints.find import committed
from holdfast.engine.node_tiers import NodeTiers
from holdfast.events import Restored
from holdfast.ranks.ballot import Ballot
from holdfast.stores.journal import read_events
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.words import Tier, parse_tiers

SHARED = "run"
EPOCHS = 3
# No rank of two, three or four gets a batch of one, which BatchNorm refuses.
ranks_at_work.SAMPLES = 45


class Job:
    """One run on nodes of `per_node` ranks each."""

    def __init__(self, base: Path, kind: str, nodes: int, per_node: int, words: Sequence[str | Tier]) -> None:
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
        uuid = CheckpointStore(self.run).uuid
        base = f"/dev/shm/holdfast-{os.getuid()}/node-caches" if tier.kind == "memory" else tier.location
        return Path(base.replace("$HOLDFAST_NODE", f"n{node}")) / uuid / f"n{node}"

    def lose(self, node: int) -> None:
        shutil.rmtree(self.cache_of(node))

    def shared_steps(self) -> list[int]:
        return sorted(found.step for found in committed(CheckpointStore(self.run)))


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

    with holdfast.Run(job.run, tiers=tiers, **{"seed": 0, **words}, **work.tracked) as run:
        if run.resumed is not None:
            told["resumed"] = {
                "step": run.resumed.step, "tier": run.resumed.tier, "read": dict(run.resumed.bytes_by_tier),
                "rejected": list(run.resumed.rejected),
            }  # fmt: skip
        told["at start"] = work.whole()
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
                    told["at death"] = work.whole()
                    tell()
                    # Not while another node still protects its files here.
                    with contextlib.suppress(RuntimeError):
                        dist.barrier()
                    os.kill(os.getpid(), signal.SIGKILL)
    told.update(whole=work.whole(), own=work.own(), step=run.step)
    tell()
    return told


def scenario_life(
    base: Path, kind: str, nodes: int, per_node: int, scheme: str, near: str, length: str
) -> dict[str, Any]:
    """Killed and started again from the caches; then one node's folder is lost; in a long life then another
    one's, and then one node too many."""
    calm = in_ranks(
        nodes * per_node, lambda rank: train(base / "calm", kind, rank, epochs=EPOCHS), base / "talk"
    )
    local = str(base / "caches") if near == "disk" else near
    job = Job(base, kind, nodes, per_node, [local, scheme, "run every 3"])
    found: dict[str, Any] = {"calm": calm, "first": job.start(die_at=5)}
    found["shared before"] = job.shared_steps()
    found["cached"] = job.start(die_at=7)
    job.lose(nodes - 1)
    found["one lost"] = job.start(die_at=9 if length == "long" else None)
    if length == "long":
        job.lose(0)
        found["another lost"] = job.start(die_at=11)
        found["shared then"] = job.shared_steps()
        for node in range(2):
            job.lose(node)
        found["two lost"] = job.start()
    found["shared at the end"] = job.shared_steps()
    found["caches at the end"] = [job.cache_of(node).parent.exists() for node in range(nodes)]
    events = [(type(event).__name__, vars(event)) for event in read_events(job.run)]
    found["protected"] = [said["name"] for what, said in events if what == "CheckpointProtected"]
    found["unprotected"] = [said for what, said in events if what == "ProtectFailed"]
    found["read"] = [said["tiers"] for what, said in events if what == "Restored"]
    return found


def scenario_rhythm(base: Path) -> dict[str, Any]:
    """Ten saves, one of them to be kept, with and without a tier on the nodes."""
    outer = Tier(str(base / "outer"), flush_every=3, keep=20)
    job = Job(base, "ddp", 2, 1, [])
    local = Tier(str(base / "caches"), protect="partner", keep=2)

    def ten_saves(run: Path, tiers: Sequence[Tier | str]) -> Callable[[int], Any]:
        def work(rank: int) -> Any:
            on_node(rank)
            training = Training("none", rank)
            with holdfast.Run(
                run, tiers=tiers, every="1000 steps", wait_limit=20.0, keep=20, **training.tracked
            ) as opened:
                for step in range(1, 11):
                    training.step(torch.ones(2, 5), torch.ones(2, 3))
                    opened.end_step()
                    opened.save_now(keep="for ever" if step == 5 else None).wait()
                    if job.words:
                        protected(opened)
                        assert opened._session is not None
                        # Before the next: what is told to go outward must still be here when it goes.
                        for one in opened._session._tiers._copies._outer.values():  # type: ignore[union-attr]
                            assert one.flusher is None or one.flusher.wait_idle(20)

        return work

    in_ranks(2, ten_saves(base / "plain", ["run", outer]), base / "talk-plain")
    plain = steps_in(base / "outer")
    shutil.rmtree(base / "outer")
    job.words = [local, "run every 4", outer]
    in_ranks(2, ten_saves(base / "run", job.words), base / "talk-nodes")
    caches = [sorted(f.step for f in committed(CheckpointStore(job.cache_of(node)))) for node in range(2)]
    return {
        "plain": plain, "plain home": steps_in(base / "plain"), "home": job.shared_steps(),
        "outer": steps_in(base / "outer"), "caches": caches,
    }  # fmt: skip


def steps_in(folder: Path) -> list[int]:
    return sorted(found.step for found in committed(CheckpointStore(folder)))


def scenario_elastic(base: Path) -> dict[str, Any]:
    """Two nodes, then one, then three, each with a path that no other node sees."""
    job = Job(base, "fsdp", 2, 1, [str(base / "caches-$HOLDFAST_NODE"), "partner", "run every 100"])
    found = {"two": job.start(die_at=4)}
    found["one"] = job.start(nodes=1, per_node=2, die_at=5)
    found["three"] = job.start(nodes=3, die_at=5)
    return found


def scenario_nothing_left(base: Path) -> dict[str, Any]:
    job = Job(base, "ddp", 2, 1, [str(base / "caches"), "single"])
    job.start(die_at=5)
    job.lose(1)
    job.start(die_at=7)
    return {"why": [path.read_text() for path in sorted((base / "talk-2").glob("error-*.txt"))]}


def scenario_killed(
    base: Path, kind: str, nodes: int, per_node: int, scheme: str, kills: int
) -> dict[str, Any]:
    """All ranks are killed at random instants, with saves, protection and copies under way."""
    epochs, world = 6, nodes * per_node
    words = [str(base / "caches"), scheme, "run every 4"]
    calm = in_ranks(world, lambda rank: train(base / "calm", kind, rank, epochs=epochs), base / "talk")
    dice = random.Random(20261116)
    lived = []

    def has_ended() -> bool:
        return all((base / "talk" / f"answer-{rank}.json").exists() for rank in range(world))

    def steps_logged() -> int:
        log = base / "log-0"
        return log.read_text().count("\n") if log.exists() else 0

    def kill_all(children: list[int]) -> None:
        # By steps and not by a clock: how long ranks take to come up is the machine's affair.
        wanted, end = steps_logged() + dice.randint(1, 3), time.monotonic() + 100
        while steps_logged() < wanted and not has_ended() and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(dice.uniform(0.0, 0.05))
        lived.append(not has_ended())
        for child in dice.sample(children, len(children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def attempt(rank: int) -> Any:
        on_node(rank // per_node)
        log = base / f"log-{rank}"
        return train(base / "fire", kind, rank, log, epochs, tiers=words)

    for _ in range(kills):
        in_ranks(world, attempt, base / "talk", kill_all)
    done = in_ranks(world, attempt, base / "talk")
    history = []
    for rank in range(world):
        lines = [
            json.loads(line) for line in (base / f"log-{rank}").read_text().splitlines() if line[-1] == "]"
        ]
        history.append({str(step): sorted({loss for s, loss in lines if s == step}) for step, _ in lines})
    restored = [event.tiers for event in read_events(base / "fire") if isinstance(event, Restored)]
    return {"calm": calm, "done": done, "killed": sum(lived), "history": history, "restored": restored}


# Where one rank is killed: who owns the call, its name, which of its calls during that save, and the steps
# that a restart may then find.
PHASES: dict[str, tuple[Any, str, int, set[int]]] = {
    "write": (CheckpointStore, "write", 1, {1}),
    "first vote": (Ballot, "vote", 1, {1}),
    "first count": (Ballot, "count", 1, {1}),
    "show": (Ballot, "open", 2, {1}),
    "publish": (CheckpointStore, "publish", 1, {1, 2}),
    "second vote": (Ballot, "vote", 2, {1, 2}),
    "second count": (Ballot, "count", 2, {1, 2}),
    "announce": (Ballot, "announce", 1, {2}),
    "outcome": (Ballot, "outcome", 1, {2}),
}
LIMIT = 3.0


def stumble(base: Path, rank: int, phase: str, victim: int) -> None:
    """Two saves; in the second one the victim dies. Nothing else ties the ranks together."""
    on_node(rank)
    owner, name, turn, _ = PHASES[phase]
    real = getattr(owner, name)
    calls = iter(range(1, 100))

    def stumbling(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == turn:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)

    training = Training("none", rank)
    with holdfast.Run(
        base / "run", tiers=[str(base / "caches"), "partner"], every="1000 steps", wait_limit=LIMIT,
        **training.tracked,
    ) as run:  # fmt: skip
        told = []
        for step in (1, 2):
            training.step(torch.ones(2, 5), torch.ones(2, 3))
            run.end_step()
            state = training.whole()
            if step == 2:
                dist.barrier()
                if rank == victim:
                    setattr(owner, name, stumbling)
            try:
                run.save_now().wait(60)
                told.append({"committed": True, "state": state})
            except holdfast.HoldfastError as error:
                told.append({"committed": False, "state": state, "why": str(error)})
            (base / f"told-{rank}.json").write_text(json.dumps(told))
        os._exit(0)


def scenario_stumble(base: Path, phase: str, victim: int) -> dict[str, Any]:
    in_ranks(3, lambda rank: stumble(base, rank, phase, victim), base / "talk")

    def look(rank: int) -> Any:
        on_node(rank)
        training = Training("none", rank)
        with holdfast.Run(
            base / "run", every="1000 steps", wait_limit=20.0, on_stop="return", **training.tracked
        ) as run:
            return {"step": run.step, "state": training.whole()}

    found = in_ranks(3, look, base / "again")
    told = [json.loads((base / f"told-{rank}.json").read_text()) for rank in range(3)]
    return {"told": told, "found": found, "may be": sorted(PHASES[phase][3])}


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    "life": lambda base, kind, nodes, per_node, scheme, near, length: scenario_life(
        base, kind, int(nodes), int(per_node), scheme, near, length
    ),
    "rhythm": scenario_rhythm,
    "elastic": scenario_elastic,
    "nothing left": scenario_nothing_left,
    "killed": lambda base, kind, nodes, per_node, scheme, kills: scenario_killed(
        base, kind, int(nodes), int(per_node), scheme, int(kills)
    ),
    "stumble": lambda base, phase, victim: scenario_stumble(base, phase, int(victim)),
}


if __name__ == "__main__":
    print(json.dumps(SCENARIOS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])))
