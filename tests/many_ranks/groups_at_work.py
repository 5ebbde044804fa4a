"""Ranks in more than one process group: what one group holds under a name, another holds differently."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ranks_at_work as ranks
import torch
import torch.distributed as dist
from ranks_at_work import in_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import holdfast

WORLD = 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 4)
        self.norm = nn.BatchNorm1d(4)
        self.expert = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.expert(self.norm(self.body(x)))


def net(seed: int) -> Net:
    torch.manual_seed(seed)
    return Net()


def half_mesh() -> Any:
    """The mesh of this rank: one half of all."""
    shape = (2, dist.get_world_size() // 2)
    return init_device_mesh("cpu", shape, mesh_dim_names=("outer", "inner"))["inner"]


def halves() -> Any:
    """The process group of this rank: one half of all."""
    world, rank = dist.get_world_size(), dist.get_rank()
    middle = world // 2
    groups = [dist.new_group(list(range(middle))), dist.new_group(list(range(middle, world)))]
    return groups[rank >= middle]


# Each makes the model of a rank; by the name of the case.
def ddp_on_a_half(rank: int) -> nn.Module:
    return DistributedDataParallel(net(rank // (dist.get_world_size() // 2)), process_group=halves())


def ddp_that_ignores_experts(rank: int) -> nn.Module:
    model = net(0)
    model.expert = net(50 + rank).expert
    names = ["expert.weight", "expert.bias"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
    return DistributedDataParallel(model)


def fsdp_on_a_half(rank: int) -> nn.Module:
    model = net(rank // 2)
    fully_shard(model, mesh=half_mesh())
    return model


def tp_on_a_half(rank: int) -> nn.Module:
    plan = {"body": ColwiseParallel(output_layouts=Replicate())}
    return parallelize_module(net(rank // (dist.get_world_size() // 2)), half_mesh(), plan)


def tp_alike(rank: int) -> nn.Module:
    """Tensor parallelism inside, the same weights in both groups."""
    plan = {"body": ColwiseParallel(output_layouts=Replicate())}
    return parallelize_module(net(0), half_mesh(), plan)


def stages(rank: int) -> nn.Module:
    return net(rank)


def kept_equal_by_hand(rank: int) -> nn.Module:
    return net(0)


def ddp_on_all(rank: int) -> nn.Module:
    return DistributedDataParallel(net(0))


def ddp_unequal(rank: int) -> nn.Module:
    return DistributedDataParallel(net(rank), init_sync=False)


def part_in_ddp(rank: int) -> nn.Module:
    """Only the body is wrapped; every rank has an expert of its own."""
    model = net(0)
    model.body = DistributedDataParallel(model.body)  # type: ignore[assignment]
    model.expert = net(50 + rank).expert
    return model


CASES: dict[str, Callable[[int], nn.Module]] = {
    made.__name__: made
    for made in (
        ddp_on_a_half, ddp_that_ignores_experts, fsdp_on_a_half, tp_on_a_half, tp_alike, stages,
        kept_equal_by_hand, ddp_on_all, ddp_unequal, part_in_ddp,
    )
}  # fmt: skip


def held(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """What this rank holds, as its own memory has it."""
    found: dict[str, str] = {}
    for index, (name, p) in enumerate(model.named_parameters()):
        found[name] = digest(p)
        for key, value in optimizer.state.get(p, {}).items():
            found[f"{index} {key}"] = digest(value)
    found |= {name: digest(buffer) for name, buffer in model.named_buffers()}
    return found


def digest(tensor: torch.Tensor) -> str:
    return ranks.digest(tensor.to_local() if isinstance(tensor, DTensor) else tensor)


# In these every rank sees the same samples: nothing but that keeps their weights in step.
SAME_SAMPLES = ("tp_on_a_half", "tp_alike", "kept_equal_by_hand")


def train(case: str, folder: Path, rank: int, *, fill: float | None = None) -> dict[str, Any]:
    """Open the run, say what it holds, take two steps, say what it holds then."""
    model = CASES[case](rank)
    if fill is not None:
        # Whatever is not restored is seen.
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(fill)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    gen = torch.Generator().manual_seed(0 if case in SAME_SAMPLES else rank)
    tracked = {"model": model, "optimizer": optimizer}
    try:
        with holdfast.Run(folder, every="1000 steps", wait_limit=30.0, **tracked) as run:
            before, step = held(model, optimizer), run.step
            if fill is not None:
                # Nothing of this is to be saved: the next one restores the same.
                raise Looked
            for _ in range(2):
                model(torch.randn(5, 6, generator=gen)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                run.end_step()
            run.save_now().wait()
    except holdfast.HoldfastError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    except Looked:
        return {"before": before, "step": step}
    return {"after": held(model, optimizer)}


class Looked(Exception):
    pass


def scenario_all(base: Path, *asked: str) -> dict[str, Any]:
    """Every case is saved by four ranks once. `asked` are "saved restored world", restored by so many."""
    wanted = [words.split() for words in asked]
    names = list(dict.fromkeys(saved for saved, _, _ in wanted))

    def save(rank: int) -> dict[str, Any]:
        answers = {name: train(name, base / name, rank) for name in names}
        # The store lives with rank 0, and the others may still be asking it how the last save ended.
        dist.barrier()
        return answers

    saved = in_ranks(WORLD, save, base / "talk")
    again: dict[str, Any] = {}
    for world in sorted({int(world) for _, _, world in wanted}):
        mine = [(was, now) for was, now, w in wanted if int(w) == world]

        def restore(rank: int, mine: list[tuple[str, str]] = mine) -> dict[str, Any]:
            return {f"{was} {now}": train(now, base / was, rank, fill=0.5) for was, now in mine}

        answers = in_ranks(world, restore, base / f"talk{world}")
        again |= {f"{was} {now} {world}": [a and a[f"{was} {now}"] for a in answers] for was, now in mine}
    return {"saved": {n: [a and a[n] for a in saved] for n in names}, "again": again}


if __name__ == "__main__":
    print(json.dumps(scenario_all(Path(sys.argv[2]), *sys.argv[3:])))
