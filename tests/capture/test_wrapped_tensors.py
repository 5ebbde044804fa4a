"""A tensor that wraps others (DTensor, a quantized state): torch counts a change where it was asked for, at
the wrapper or at the part. A snapshot that was overtaken by either is thrown away, never committed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import holdfast
from holdfast.errors import TornSnapshot
from holdfast.staging import torch_stager


@pytest.fixture
def _alone_in_a_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sharded_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return model


def add_to_the_whole(parameter: Any) -> None:
    parameter.add_(1)


def add_to_the_part(parameter: Any) -> None:
    parameter.to_local().add_(1)


@pytest.mark.usefixtures("_alone_in_a_group")
@pytest.mark.parametrize("saves_before", [0, 2], ids=["first save", "third save"])
@pytest.mark.parametrize("change", [add_to_the_whole, add_to_the_part])
@pytest.mark.parametrize("what", ["weight", "moment"])
def test_a_sharded_tensor_changed_during_the_copy_tears_the_snapshot(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    change: Callable[[Any], None],
    saves_before: int,
) -> None:
    model = sharded_model()
    opt = torch.optim.AdamW(model.parameters())
    real = torch_stager.Snapshot.finish
    changing = False

    def finish(snapshot: Any) -> None:
        if changing:
            # The last bytes of the last layer: no sample of a few bytes lies here.
            target = model[1].bias if what == "weight" else opt.state[model[1].bias]["exp_avg_sq"]
            with torch.no_grad():
                change(target)
        real(snapshot)

    monkeypatch.setattr(torch_stager.Snapshot, "finish", finish)
    monkeypatch.setattr(torch_stager.Snapshot, "_require_as_noted", lambda self: None)
    with holdfast.Run(tmp_path, model=model, optimizer=opt, every="1000 steps", copy="overlapped") as run:
        for _ in range(saves_before + 1):
            model(torch.ones(2, 8)).sum().backward()
            opt.step()
            opt.zero_grad()
            run.end_step()
            if run.step <= saves_before:
                run.save_now().wait()
        changing = True
        handle = run.save_now()
        assert handle.ended_within(30)
        changing = False
        assert isinstance(handle.error, TornSnapshot)
