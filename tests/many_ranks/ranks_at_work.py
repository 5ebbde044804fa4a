"""Ranks that train together under holdfast, forked from one process that has torch imported already.

A program of its own: forking is safe only while no other thread runs. Prints what happened as one JSON line.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import numpy as np
import torch

# FSDP imports it when it is first used: here once, and not in every rank of every start.
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

import holdfast
from holdfast.checkpoints.find import committed
from holdfast.engine import run as run_module
from holdfast.engine.torch_snapshots import Snapshots
from holdfast.ranks.ballot import Ballot
from holdfast.ranks.torch_team import team_from_torch
from holdfast.staging.torch_stager import Snapshot
from holdfast.stores.store import CheckpointStore

logging.captureWarnings(True)
SAMPLES, BATCH, EPOCHS = 46, 3, 2
KINDS = ("ddp", "fsdp")


class Net(nn.Module):
    """Sizes that no number of ranks divides, a buffer that every rank has for itself, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 13)
        self.norm = nn.BatchNorm1d(13)
        self.second = nn.Linear(13, 3)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.dropout(torch.relu(self.norm(self.first(x))), 0.3)
        return self.second(hidden) * self.scale


class Training:
    def __init__(self, kind: str, rank: int) -> None:
        torch.manual_seed(7)
        net: nn.Module = Net()
        if kind == "ddp":
            net = nn.parallel.DistributedDataParallel(net)
        elif kind == "fsdp":
            for layer in (net.first, net.second):
                fully_shard(layer)
            fully_shard(net)
        self.model = net
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.9)
        gen = torch.Generator().manual_seed(3)
        self.data = TensorDataset(
            torch.arange(SAMPLES),
            torch.randn(SAMPLES, 5, generator=gen),
            torch.randn(SAMPLES, 3, generator=gen),
        )
        self.loader = DataLoader(self.data, BATCH, shuffle=True)
        self.tracked: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
        }
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(100 + rank)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.mse_loss(self.model(x), y) + 0.001 * float(np.random.rand()) * random.random()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def whole(self) -> dict[str, str]:
        """What all ranks hold together, by name: equal however it is spread."""
        found: dict[str, str] = {}
        plain = getattr(self.model, "module", self.model)
        names = {}
        for name, p in plain.named_parameters():
            names[p] = name
            found[name] = digest(p)
        for p, state in self.optimizer.state.items():
            for key, value in state.items():
                found[f"{names[p]}.{key}"] = digest(value)
        found["scheduler"] = repr(self.scheduler.state_dict())
        return found

    def own(self) -> dict[str, str]:
        """What belongs to this rank alone."""
        plain = getattr(self.model, "module", self.model)
        return {
            "rng": hashlib.sha256(
                repr((torch.get_rng_state().tolist(), random.getstate(), np.random.get_state())).encode()
            ).hexdigest(),
            "buffers": repr({name: digest(b) for name, b in plain.named_buffers()}),
        }


def digest(tensor: torch.Tensor) -> str:
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(repr((tuple(tensor.shape), str(tensor.dtype))).encode() + data).hexdigest()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def in_ranks(
    world: int,
    work: Callable[[int], Any],
    folder: Path,
    meanwhile: Callable[[list[int]], None] | None = None,
    *,
    limit: float = 120,
) -> list[Any]:
    """Fork `world` ranks, let each do `work(rank)`, and give back what they returned (None: killed)."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(world):
        (folder / f"answer-{rank}.json").unlink(missing_ok=True)
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
                dist.init_process_group(
                    "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world,
                    timeout=timedelta(seconds=60),
                )  # fmt: skip
                answer = work(rank)
                (folder / f"answer-{rank}.json").write_text(json.dumps(answer))
                status = 0
            except SystemExit as stopped:
                (folder / f"answer-{rank}.json").write_text(json.dumps({"exit": stopped.code}))
            except BaseException:  # noqa: BLE001  the parent shows it
                (folder / f"error-{rank}.txt").write_text(traceback.format_exc())
            finally:
                os._exit(status)
        children.append(child)
    if meanwhile is not None:
        meanwhile(children)
    deadline = time.monotonic() + limit
    left = set(children)
    while left and time.monotonic() < deadline:
        done, _ = os.waitpid(-1, os.WNOHANG)
        left.discard(done)
        if not done:
            time.sleep(0.005)
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if left:
        raise TimeoutError(f"{len(left)} of {world} ranks did not end within {limit} s")
    answers = [folder / f"answer-{rank}.json" for rank in range(world)]
    return [json.loads(path.read_text()) if path.exists() else None for path in answers]


def train(
    folder: Path, kind: str, rank: int, log: Path | None = None, epochs: int = EPOCHS, **options: Any
) -> dict[str, Any]:
    work = Training(kind, rank)
    losses = []
    with holdfast.Run(
        folder, **{"every": "2 steps", "wait_limit": 30.0, "seed": 0, **options}, **work.tracked
    ) as run:
        for _ in run.epochs(epochs):
            for _, x, y in run.batches(work.loader):
                loss = work.step(x, y)
                losses.append([run.step, loss.numpy().tobytes().hex()])
                if log is not None:
                    with log.open("a") as lines:
                        lines.write(json.dumps(losses[-1]) + "\n")
                run.end_step(loss=loss)
    return {"whole": work.whole(), "own": work.own(), "losses": losses, "step": run.step}


def save_part_way(folder: Path, kind: str, rank: int, steps: int = 4) -> dict[str, Any]:
    """Some steps, then a checkpoint; says what it holds and which samples it saw."""
    work = Training(kind, rank)
    seen: list[int] = []
    with holdfast.Run(
        folder, every="1000 steps", seed=0, wait_limit=30.0, on_stop="return", **work.tracked
    ) as run:
        for _ in run.epochs(1):
            for index, x, y in run.batches(work.loader):
                seen += index.tolist()
                run.end_step(loss=work.step(x, y))
                if run.step == steps:
                    run.save_now().wait()
                    answer = {"whole": work.whole(), "own": work.own(), "seen": seen}
                    return answer
    raise AssertionError("never got there")


def look_at(folder: Path, kind: str, rank: int) -> dict[str, Any]:
    """Restore, say what was restored, and read the rest of the epoch without training on it."""
    work = Training(kind, rank)
    with holdfast.Run(folder, every="1000 steps", seed=0, wait_limit=30.0, **work.tracked) as run:
        assert run.resumed is not None
        answer = {
            "whole": work.whole(), "own": work.own(), "step": run.step, "read": run.resumed.bytes,
        }  # fmt: skip
        feed = run._loop._loaders.feed(work.loader, None)
        turns = list(feed.batches(run.epoch))
        answer["rest"] = [i for batch in turns for i in batch[0].tolist()]
    return answer


def scenario_reshard(base: Path, kind: str, other_worlds: str) -> dict[str, Any]:
    saved = in_ranks(2, lambda rank: save_part_way(base / "run", kind, rank), base / "talk")
    found = {}
    for now in KINDS:
        for world in (1, 2, 3, 4) if now == kind else map(int, other_worlds):
            found[f"{now} {world}"] = in_ranks(
                world, lambda rank, now=now: look_at(base / "run", now, rank), base / "talk" / f"{now}{world}"
            )
    return {"saved": saved, "found": found}


def scenario_killed(base: Path, kind: str, kills: int, seed: int) -> dict[str, Any]:
    """All ranks of a training are killed, again and again, at random instants."""
    epochs = 8
    began = time.monotonic()
    undisturbed = in_ranks(2, lambda rank: train(base / "calm", kind, rank, epochs=epochs), base / "talk")
    lifetime = time.monotonic() - began
    dice = random.Random(seed)
    logs = [base / f"log-{rank}" for rank in range(2)]
    lived = []

    def kill_all(children: list[int]) -> None:
        time.sleep(dice.uniform(0.1, 0.8) * lifetime)
        # Not at one instant: the first to die leaves the others in the middle of something.
        lived.append(not all((base / "talk" / f"answer-{rank}.json").exists() for rank in range(2)))
        for child in dice.sample(children, len(children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def attempt(meanwhile: Callable[[list[int]], None] | None = None) -> list[Any]:
        return in_ranks(
            2, lambda rank: train(base / "fire", kind, rank, logs[rank], epochs), base / "talk", meanwhile
        )

    for _ in range(kills):
        attempt(kill_all)
    done = attempt()
    history = []
    for log in logs:
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("]")]
        history.append({str(step): sorted({loss for s, loss in lines if s == step}) for step, _ in lines})
    return {"undisturbed": undisturbed, "done": done, "killed": sum(map(bool, lived)), "history": history}


# Where one rank is killed or hangs: who owns the call, its name, whether the save is committed all the same.
PHASES: dict[str, tuple[Any, str, bool]] = {
    "snapshot": (Snapshots, "take", False),
    "copy": (Snapshot, "finish", False),
    "begin": (CheckpointStore, "begin", False),
    "write": (CheckpointStore, "write", False),
    "vote": (Ballot, "vote", False),
    "count": (Ballot, "count", False),
    "publish": (CheckpointStore, "publish", False),
    "announce": (Ballot, "announce", True),
    "outcome": (Ballot, "outcome", True),
}
LIMIT = 5.0


def stumble(folder: Path, rank: int, phase: str, victim: int, how: str) -> dict[str, Any]:
    """Three saves; in the second one the victim dies or hangs in the given phase. Nothing else ties the ranks
    together, so that the others live to tell."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    go_on = threading.Event()
    owner, name, _ = PHASES[phase]
    real = getattr(owner, name)

    def stumbling(*args: Any, **kwargs: Any) -> Any:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        go_on.wait(3 * LIMIT)
        return real(*args, **kwargs)

    def one_save(run: holdfast.Run) -> dict[str, Any]:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        run.end_step()
        began = time.monotonic()
        try:
            run.save_now().wait(60)
            return {"committed": True, "seconds": time.monotonic() - began}
        except holdfast.HoldfastError as error:
            return {"committed": False, "seconds": time.monotonic() - began, "why": str(error)}

    # The limit is short; on a busy machine ranks do not come up at once, and a connection takes seconds.
    dist.barrier()
    run_module.team_from_torch = lambda key, limit: team_from_torch(key, limit=60.0)
    with holdfast.Run(folder, every="1000 steps", wait_limit=LIMIT, model=model, optimizer=optimizer) as run:
        saves = [one_save(run)]
        dist.barrier()
        if rank == victim:
            setattr(owner, name, stumbling)
        saves.append(one_save(run))
        go_on.set()
        setattr(owner, name, real)
        if how == "hang":
            dist.barrier()
            saves.append(one_save(run))
        else:
            # A rank is missing, so this run cannot end well; what it has to tell is told.
            (folder.parent / f"saves-{rank}").write_text(json.dumps(saves))
            os._exit(0)
    return {"saves": saves}


def scenario_stumble(base: Path, phase: str, victim: int, how: str) -> dict[str, Any]:
    began = time.monotonic()
    answers = in_ranks(
        3, lambda rank: stumble(base / "run", rank, phase, victim, how), base / "talk", limit=60
    )
    told = []
    for rank, answer in enumerate(answers):
        left = base / f"saves-{rank}"
        told.append(answer["saves"] if answer else (json.loads(left.read_text()) if left.exists() else None))
    found = [f.step for f in committed(CheckpointStore(base / "run"))]
    resumed = in_ranks(3, lambda rank: resume_only(base / "run"), base / "again", limit=60)
    return {
        "told": told, "steps": sorted(found), "resumed": resumed, "seconds": time.monotonic() - began,
        "should_commit": PHASES[phase][2],
    }  # fmt: skip


def scenario_sigterm(base: Path, kind: str, seed: int) -> dict[str, Any]:
    """One rank of four is asked to stop; then all go on to the end."""
    undisturbed = in_ranks(4, lambda rank: train(base / "calm", kind, rank, epochs=6), base / "talk")
    log = base / "log-2"
    dice = random.Random(seed)

    def ask_one(children: list[int]) -> None:
        wanted = dice.randint(3, 9)
        while not log.exists() or len(log.read_text().splitlines()) < wanted:
            time.sleep(0.001)
        os.kill(children[2], signal.SIGTERM)

    def attempt(rank: int) -> Any:
        return train(base / "run", kind, rank, log if rank == 2 else None, epochs=6, every="1000 steps")

    stopped = in_ranks(4, attempt, base / "talk", ask_one)
    steps = sorted(f.step for f in committed(CheckpointStore(base / "run")))
    done = in_ranks(4, attempt, base / "talk")
    return {"undisturbed": undisturbed, "stopped": stopped, "steps": steps, "done": done}


def resume_only(folder: Path) -> dict[str, Any]:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with holdfast.Run(folder, every="1000 steps", wait_limit=10.0, model=model, optimizer=optimizer) as run:
        return {"step": run.step}


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    "reshard": scenario_reshard,
    "stumble": lambda base, phase, victim, how: scenario_stumble(base, phase, int(victim), how),
    "sigterm": lambda base, kind, seed: scenario_sigterm(base, kind, int(seed)),
    "killed": lambda base, kind, kills, seed: scenario_killed(base, kind, int(kills), int(seed)),
}


if __name__ == "__main__":
    print(json.dumps(SCENARIOS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])))
