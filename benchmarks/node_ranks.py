"""Ranks of several nodes on this machine: forked, each node with a name, an address and caches of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import holdfast
from holdfast.engine.node_tiers import NodeTiers


def in_ranks(nodes: int, folder: Path, work: Callable[[int], Any]) -> list[Any]:
    """One rank per node. What each left with `tell`, also if it killed itself behind that."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    children = []
    for rank in range(nodes):
        (folder / f"told-{rank}").unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.environ.update(HOLDFAST_NODE=f"n{rank}", HOLDFAST_ADDRESS=f"127.0.0.{10 + rank}")
                torch.set_num_threads(1)
                dist.init_process_group(
                    "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=nodes
                )
                tell(folder, rank, work(rank))
                code = 0
            except BaseException:  # noqa: BLE001  a forked rank must not return into its parent
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    return [json.loads((folder / f"told-{rank}").read_text()) for rank in range(nodes)]


def tell(folder: Path, rank: int, answer: Any) -> None:
    (folder / f"told-{rank}").write_text(json.dumps(answer))


def die() -> None:
    """As a node does: nothing is closed, nothing given back."""
    os.kill(os.getpid(), signal.SIGKILL)


def model_of(megabytes: int, *, shared: bool) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """`megabytes` of parameters and AdamW's moments: the same on all ranks (DDP), or each rank's own."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(512, 512) for _ in range(max(megabytes // 3, 1))]
    model: torch.nn.Module = torch.nn.Sequential(*layers)
    if shared:
        model = torch.nn.parallel.DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters())


def node_tiers(run: holdfast.Run) -> NodeTiers:
    assert run._session is not None
    tiers = run._session._tiers
    assert isinstance(tiers, NodeTiers)
    return tiers
