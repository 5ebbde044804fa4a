"""Which ranks hold a tensor together: all of them, the process group of a DDP module, a device mesh.

What one group keeps equal, another may hold quite differently under the same name: stages of a pipeline,
ensembles, experts. So the ranks of the group are part of what a stored tensor is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from holdfast.capture.torch_shards import is_sharded
from holdfast.format.checksum import RunningDigest
from holdfast.format.rank_sets import spell_ranks

Ranks = tuple[int, ...]
# Numbers of each tensor that are looked at when ranks compare what they hold alike.
_SPOTS = 16


@dataclass(frozen=True)
class Sharing:
    """Who this rank is, and which tensors (by id) training keeps equal on which ranks."""

    rank: int
    world: int
    replicated: Mapping[int, Ranks]

    @property
    def everybody(self) -> Ranks:
        return tuple(range(self.world))

    def group_of(self, leaf: Any) -> Ranks:
        """The ranks that hold this tensor together; this rank alone where nobody else is known to."""
        if is_sharded(leaf):
            return mesh_ranks(leaf)
        return self.replicated.get(id(leaf), (self.rank,))


def mesh_ranks(tensor: Any) -> Ranks:
    """The ranks of a DTensor's mesh, ascending."""
    return tuple(sorted(set(tensor.device_mesh.mesh.flatten().tolist())))


def spread(sizes: Sequence[int], ranks: Ranks) -> list[int]:
    """Which rank writes each of the tensors that all these have, so that all write about equally much.

    Depends on nothing but the sizes: every rank comes to the same answer without asking.
    """
    load = dict.fromkeys(ranks, 0)
    owners = [ranks[0]] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owner = min(ranks, key=load.__getitem__)
        owners[index] = owner
        load[owner] += sizes[index]
    return owners


def replicated(modules: Iterable[Any], optimizers: Iterable[Any]) -> dict[int, Ranks]:
    """The parameters that DistributedDataParallel keeps equal, and the optimizer states that follow them: by
    id, the ranks on which they are equal.

    Buffers are not among them: between two forward passes each rank has its own.
    """
    found: dict[int, Ranks] = {}
    for tracked in modules:
        for wrapper in tracked.data_parallel:
            found.update(_kept_equal(wrapper))
    for tracked in optimizers:
        for parameter, state in tracked.optimizer.state.items():
            if id(parameter) in found and isinstance(state, dict):
                ranks = found[id(parameter)]
                found.update({id(v): ranks for v in state.values() if isinstance(v, torch.Tensor)})
    return found


def _kept_equal(wrapper: nn.parallel.DistributedDataParallel) -> dict[int, Ranks]:
    ranks = tuple(sorted(dist.get_process_group_ranks(wrapper.process_group)))
    # torch itself spells a parameter of the outermost module in two ways.
    ignored = {name.removeprefix(".") for name in wrapper.parameters_to_ignore}
    return {
        id(p): ranks
        for name, p in wrapper.module.named_parameters(remove_duplicate=False)
        if name not in ignored and not is_sharded(p)
    }


def sample_of(tensors: Iterable[tuple[str, str, torch.Tensor]]) -> dict[str, str]:
    """A digest for every group (by its spelling) of a few numbers of each tensor that it keeps equal."""
    digests: dict[str, RunningDigest] = {}
    for ranks, name, tensor in tensors:
        flat = tensor.detach().reshape(-1)
        some = flat[:: max(1, -(-flat.numel() // _SPOTS))].cpu().contiguous()
        digest = digests.setdefault(ranks, RunningDigest())
        digest.update(name.encode())
        digest.update(some.view(torch.uint8).numpy().tobytes() if some.numel() else b"")
    return {ranks: digest.hex() for ranks, digest in digests.items()}


def spelled(ranks: Ranks, world: int) -> str | None:
    """For a skeleton's entry; None for everybody, which needs no words."""
    return None if ranks == tuple(range(world)) else spell_ranks(ranks)
