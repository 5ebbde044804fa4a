"""The team of a `torch.distributed` job."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

import torch.distributed as dist

from holdfast.clock import SystemClock
from holdfast.errors import SetupError
from holdfast.ranks.join import Place, join
from holdfast.ranks.launcher import ALONE, launched
from holdfast.ranks.team import Team
from holdfast.ranks.torch_store import TorchRankStore, over_tcp

_NOT_INITIALISED = "and torch.distributed is not initialised"


def team_from_torch(run_key: str, *, limit: float) -> Team | None:
    """Everybody who trains with this process; None if it trains alone.

    `run_key` names the run and is the same on all ranks. Waits up to `limit` seconds for the others.
    """
    started = launched(os.environ)
    initialised = dist.is_available() and dist.is_initialized()
    rank, world = (dist.get_rank(), dist.get_world_size()) if initialised else (0, 1)
    if world == 1:
        if started is not None and started.world > 1:
            raise SetupError(
                f"this is one of {started.world} processes ({started.variable}), "
                + ("and torch.distributed knows only itself" if initialised else _NOT_INITIALISED),
                hint="call torch.distributed.init_process_group() with all of them before holdfast.Run; if "
                f"each of them is a training of its own, in a folder of its own, set {ALONE}=1",
            )
        return None
    return join(
        _default_store(rank, limit).scoped(f"holdfast/{run_key}"),
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
        machine=_machine(),
        process=os.getpid(),
    )


def _machine() -> str | None:
    """Where process ids mean the same: one boot, one namespace. None where that cannot be known."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _default_store(rank: int, limit: float) -> TorchRankStore:
    """A connection of our own to what torch.distributed met through."""
    store = dist.distributed_c10d._get_default_store()
    if store is None:
        raise SetupError(
            "torch.distributed was initialised without a store (the MPI backend)",
            hint="initialise it with the gloo or nccl backend",
        )
    return TorchRankStore(over_tcp(store, rank, limit)).clone()


def _number(environ: Mapping[str, str], name: str, otherwise: int) -> int:
    try:
        return int(environ[name])
    except (KeyError, ValueError):
        return otherwise
