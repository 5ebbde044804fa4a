"""A state that cannot be stored is an error at the first save that meets it: no training ends, with success,
without the checkpoints that it believes to have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.two_tensor import TwoTensor

import holdfast
from holdfast.errors import SetupError


def parts() -> dict[str, Any]:
    model = torch.nn.Linear(2, 2)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}


def step(tracked: dict[str, Any]) -> None:
    tracked["model"](torch.ones(1, 2)).sum().backward()
    tracked["optimizer"].step()
    tracked["optimizer"].zero_grad()


def save_for_a_while(run: holdfast.Run, tracked: dict[str, Any]) -> None:
    for _ in range(2):
        run.save_now().ended_within(30)
        step(tracked)
        run.end_step()


@pytest.mark.parametrize("copy", ["overlapped", "blocking"])
@pytest.mark.parametrize("where", ["run.extras", "the optimizer"])
def test_what_appears_later_and_cannot_be_stored_is_raised_where_it_is_met(
    tmp_path: Path, where: str, copy: Any
) -> None:
    tracked = parts()
    with holdfast.Run(tmp_path, every="1000 steps", copy=copy, **tracked) as run:
        for _ in range(3):
            step(tracked)
            run.end_step()
            assert run.save_now().wait()
        step(tracked)
        run.end_step()
        if where == "run.extras":
            run.extras["thing"] = object()
        else:
            tracked["optimizer"].state[tracked["model"].weight]["thing"] = object()
        # What is found behind training is taken again at the next boundary, in full, and raised there.
        with pytest.raises(SetupError, match="thing"):
            save_for_a_while(run, tracked)
        run.extras.clear()
        tracked["optimizer"].state[tracked["model"].weight].pop("thing", None)
    assert holdfast.checkpoints(tmp_path)[0].step == run.step


def test_a_script_whose_only_save_is_the_last_does_not_end_with_success(tmp_path: Path) -> None:
    script = """
import sys, torch, holdfast
model = torch.nn.Linear(2, 2)
with holdfast.Run(sys.argv[1], model=model, every="1000 steps") as run:
    run.extras["thing"] = object()
    run.end_step()
"""
    ended = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "run['extras']['thing']" in ended.stderr


def test_a_part_of_a_dtensor_that_is_made_of_several_tensors_is_refused_before_training(
    tmp_path: Path,
) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model = torch.nn.Linear(4, 4, bias=False)
        part = TwoTensor(torch.randn(4, 4), torch.randn(4, 4))
        model.weight = torch.nn.Parameter(DTensor.from_local(part, mesh, [Shard(0)]))
        with pytest.raises(SetupError, match="a part of a DTensor that is itself a TwoTensor"):
            with holdfast.Run(tmp_path, model=model):
                pytest.fail("training must not begin")
    finally:
        dist.destroy_process_group()
