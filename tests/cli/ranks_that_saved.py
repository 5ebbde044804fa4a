"""Checkpoints of several ranks for the command line to look at. A program of its own, as forking demands.

`ddp`: two ranks trained under DDP. `fsdp`: three ranks took that over and sharded it, saved it as it was, and
again a step later. `dcp`: what the three had taken over, saved through torch.distributed.checkpoint.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "many_ranks"))

import torch.distributed.checkpoint as dcp
from ranks_at_work import Training, in_ranks, save_part_way
from torch.distributed.checkpoint.state_dict import get_state_dict

import holdfast
import holdfast.engine.run  # once, before the ranks are forked
from holdfast.integrations.torch_dcp import HoldfastWriter


def take_over(base: Path, rank: int) -> dict[str, Any]:
    work = Training("fsdp", rank)
    with holdfast.Run(base / "fsdp", every="1000 steps", seed=0, wait_limit=30.0, **work.tracked) as run:
        run.save_now("as it was").wait()
        taken = work.whole()
        weights, moments = get_state_dict(work.model, work.optimizer)
        with HoldfastWriter(base / "dcp") as writer:
            state = {"model": weights, "optim": moments, "step": run.step, "lists": [1, {"two": 2.5}]}
            dcp.save(state, checkpoint_id=str(run.step), storage_writer=writer)
        for _, x, y in run.batches(work.loader):
            run.end_step(loss=work.step(x, y))
            run.save_now("a step later").wait()
            return {"taken": taken, "later": work.whole(), "own": work.own()}
    raise AssertionError("no batch was left")


def main(base: Path) -> dict[str, Any]:
    ddp = in_ranks(2, lambda rank: save_part_way(base / "ddp", "ddp", rank), base / "talk")
    shutil.copytree(base / "ddp", base / "fsdp")
    fsdp = in_ranks(3, lambda rank: take_over(base, rank), base / "talk")
    return {"ddp": ddp, "fsdp": fsdp}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
