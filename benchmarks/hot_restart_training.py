"""A small training that loses nodes on schedule: the worker of the hot-restart experiment.

Needs nothing but `init_process_group()` and a `Run`; who starts it, it cannot tell. Rank 0 appends each
epoch's loss with all its digits, and the time, to the log. At the epochs that `ERRORS` names, the worker of a
node takes its node down: the node's disk is gone, and so is the process that keeps the node. `SHARDED=1`
trains with FSDP2, otherwise gradients are averaged.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast
from holdfast.tiers.protect_record import is_record_name

SAMPLES_PER_RANK = 24
BATCH = 6
# Beside its steps: an epoch that is shorter than a save is none.
EPOCH_SECONDS = 0.2


def take_node_down(base: Path, epoch: int) -> None:
    """Once for each error: whoever takes the place of this node finds the mark and goes on."""
    victim = json.loads(os.environ.get("ERRORS", "{}")).get(str(epoch))
    if victim is None or victim != os.environ.get("HOLDFAST_NODE"):
        return
    mark = base / f"error-{epoch}"
    if mark.exists():
        return
    wait_for_protection(base)
    mark.touch()
    shutil.rmtree(os.environ["NODE_DIR"], ignore_errors=True)
    if os.environ.get("KEPT"):
        os.kill(os.getppid(), signal.SIGKILL)  # the keeper; this process follows it
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_protection(base: Path) -> None:
    """In earnest a checkpoint is long protected when a node breaks."""
    for _ in range(200):
        newest = max((p.parent.name for p in base.glob("disk*/cache/*/*/ckpt/*/MANIFEST")), default="none")
        places = base.glob(f"disk*/cache/*/*/ckpt/{newest}")
        protected = [place for place in places if any(is_record_name(f.name) for f in place.iterdir())]
        if len(protected) == dist.get_world_size():
            return
        time.sleep(0.05)


def shard(model: nn.Sequential) -> None:
    from torch.distributed.fsdp import fully_shard  # importing it takes as long as importing torch

    for layer in (model[0], model[3]):
        fully_shard(layer)
    fully_shard(model)


def average_gradients(model: nn.Module) -> None:
    """In one piece and in one order: DDP regroups its buckets after the first step of a process, and the last
    bits of a restarted training would differ."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def main() -> None:
    base, epochs = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 61), nn.Tanh(), nn.Dropout(0.1), nn.Linear(61, 4))
    sharded = os.environ.get("SHARDED") == "1"
    if sharded:
        shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    made = torch.Generator().manual_seed(2)
    count = SAMPLES_PER_RANK * world
    data = TensorDataset(torch.randn(count, 16, generator=made), torch.randn(count, 4, generator=made))
    loader = DataLoader(data, BATCH, shuffle=True)
    torch.manual_seed(3 + rank)
    tiers = json.loads(os.environ["TIERS"]) if os.environ.get("TIERS") else None
    with holdfast.Run(
        base / "run", tiers=tiers, every="1 epoch", model=model, optimizer=optimizer, wait_limit=60.0
    ) as run:
        if rank == 0 and run.resumed is not None:
            read = json.dumps(
                {"from": run.resumed.tier, "step": run.resumed.step, **run.resumed.bytes_by_tier}
            )
            with (base / "resumed").open("a") as file:
                file.write(read + "\n")
        for epoch in run.epochs(epochs):
            if run.extras.get("epoch") != epoch:
                # Saved with every checkpoint: a restart may begin in the middle of an epoch.
                run.extras.update(epoch=epoch, total=0.0)
            for x, y in run.batches(loader):
                if epoch and run.extras["total"]:
                    take_node_down(base, epoch)
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                if not sharded:
                    average_gradients(model)
                optimizer.step()
                optimizer.zero_grad()
                run.extras["total"] += loss.item()
                run.end_step(loss=loss.detach())
            time.sleep(EPOCH_SECONDS)
            total = torch.tensor(run.extras["total"], dtype=torch.float64)
            dist.all_reduce(total)
            if rank == 0:
                with (base / "losses").open("a") as file:
                    file.write(f"{epoch} {total.item()!r} {time.time()}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
