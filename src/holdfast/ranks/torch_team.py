"""The team of a `torch.distributed` job."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

import torch.distributed as dist

from holdfast.clock import SystemClock
from holdfast.errors import SetupError
from holdfast.ranks.join import Place, join
from holdfast.ranks.team import Team
from holdfast.ranks.torch_store import TorchRankStore


def team_from_torch(run_key: str, *, limit: float) -> Team | None:
    """Everybody who trains with this process; None if it trains alone.

    `run_key` names the run and is the same on all ranks. Waits up to `limit` seconds for the others.
    """
    if not dist.is_available() or not dist.is_initialized():
        if _number(os.environ, "WORLD_SIZE", 1) > 1:
            raise SetupError(
                f"this is one of {os.environ['WORLD_SIZE']} processes (WORLD_SIZE), "
                "and torch.distributed is not initialised",
                hint="call torch.distributed.init_process_group() before holdfast.Run; "
                "for one process on its own, unset WORLD_SIZE",
            )
        return None
    rank, world = dist.get_rank(), dist.get_world_size()
    if world == 1:
        return None
    return join(
        _default_store().scoped(f"holdfast/{run_key}"),
        SystemClock(),
        rank=rank,
        world=world,
        place=place_of(os.environ),
        limit=limit,
    )


def place_of(environ: Mapping[str, str]) -> Place:
    local = _number(environ, "LOCAL_RANK", _number(environ, "SLURM_LOCALID", -1))
    return Place(
        host=socket.gethostname(),
        group=environ.get("GROUP_RANK"),
        node=environ.get("HOLDFAST_NODE") or None,
        local_rank=local if local >= 0 else None,
    )


def _default_store() -> TorchRankStore:
    """A connection of our own to what torch.distributed met through."""
    store = dist.distributed_c10d._get_default_store()
    if store is None:
        raise SetupError(
            "torch.distributed was initialised without a store (the MPI backend)",
            hint="initialise it with the gloo or nccl backend",
        )
    return TorchRankStore(store).clone()


def _number(environ: Mapping[str, str], name: str, otherwise: int) -> int:
    try:
        return int(environ[name])
    except (KeyError, ValueError):
        return otherwise
