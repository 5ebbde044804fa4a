"""HoldfastWriter and HoldfastReader on real gloo ranks, against what DCP's own files give."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from gloo_ranks import run_ranks
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from holdfast.checkpoints.listing import checkpoints
from holdfast.integrations.torch_dcp import HoldfastReader, HoldfastWriter

STEPS = 3


def training(world: int, seed: int, steps: int) -> dict[str, Any]:
    """An FSDP2 model whose rows do not divide by the ranks, and its AdamW, after a few steps."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(13, 7), nn.Tanh(), nn.Linear(7, 5, dtype=torch.float32))
    mesh = init_device_mesh("cpu", (world,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(4, 13)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optim": moments, "progress": {"epoch": steps, "seen": (steps, "batches")}}


def leaves(state: Any, path: str = "") -> dict[str, Any]:
    if isinstance(state, dict):
        return {k: v for key, item in state.items() for k, v in leaves(item, f"{path}/{key}").items()}
    if isinstance(state, list):
        return {k: v for i, item in enumerate(state) for k, v in leaves(item, f"{path}/{i}").items()}
    return {path: state.to_local() if isinstance(state, DTensor) else state}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and one == other


def save_both(rank: int, world: int, folder: Path) -> int:
    state = training(world, seed=1, steps=STEPS)
    dcp.save(state, storage_writer=HoldfastWriter(folder / "run", step=STEPS))
    dcp.save(state, checkpoint_id=folder / "plain")
    return len(leaves(state))


def load_both(rank: int, world: int, folder: Path) -> tuple[int, list[str], list[str]]:
    ours, plain, fresh = (training(world, seed=2, steps=1) for _ in range(3))
    dcp.load(ours, storage_reader=HoldfastReader(folder / "run"))
    dcp.load(plain, checkpoint_id=folder / "plain")
    ours, plain, fresh = leaves(ours), leaves(plain), leaves(fresh)
    assert set(ours) == set(plain)
    different = [key for key in plain if not same(ours[key], plain[key])]
    # With more ranks than rows some hold nothing of a tensor.
    learned = [key for key, value in ours.items() if isinstance(value, torch.Tensor) and value.numel()]
    return len(plain), different, [key for key in learned if same(ours[key], fresh[key])]


@pytest.fixture(scope="module")
def saved_by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    run_ranks(2, save_both, folder)
    return folder


@pytest.mark.parametrize("world", [1, 2, 4])
def test_what_two_ranks_saved_loads_on_any_number_as_dcp_itself_would_load_it(
    saved_by_two: Path, world: int
) -> None:
    for count, different, unchanged in run_ranks(world, load_both, saved_by_two):
        assert count > 20
        assert different == []
        assert unchanged == [], "the template was of another seed and is still there"


def test_every_rank_wrote_one_image_and_the_first_one_manifest(saved_by_two: Path) -> None:
    (saved,) = checkpoints(saved_by_two / "run")
    assert saved.step == STEPS
    assert sorted(saved.files) == ["dcp-r00000.safetensors", "dcp-r00001.safetensors"]
    assert {file.name for file in saved.files["dcp-r00000.safetensors"].parent.iterdir()} == {
        *saved.files, "MANIFEST", "MANIFEST.2",
    }  # fmt: skip


def grid(world: int, dim: int, fill: float | None = None) -> Any:
    whole = torch.arange(7 * 9 * 2, dtype=torch.float64).reshape(7, 9, 2)
    mesh = init_device_mesh("cpu", (world,))
    return distribute_tensor(whole if fill is None else torch.full_like(whole, fill), mesh, [Shard(dim)])


def save_rows(rank: int, world: int, folder: Path) -> None:
    dcp.save({"grid": grid(world, 0)}, storage_writer=HoldfastWriter(folder, step=1))


def load_columns(rank: int, world: int, folder: Path) -> bool:
    state = {"grid": grid(world, 1, fill=-1.0)}
    dcp.load(state, storage_reader=HoldfastReader(folder))
    return torch.equal(state["grid"].full_tensor(), grid(world, 0).full_tensor())


def test_what_was_split_by_rows_loads_split_by_columns(tmp_path: Path) -> None:
    run_ranks(2, save_rows, tmp_path)
    assert run_ranks(3, load_columns, tmp_path) == [True] * 3


class KilledPlanner(DefaultSavePlanner):
    def resolve_data(self, write_item: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class FailingPlanner(DefaultSavePlanner):
    def resolve_data(self, write_item: Any) -> Any:
        raise OSError("this rank's memory is gone")


def tensors(world: int, value: float) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (world,))
    whole = torch.full((8, 2), value)
    return {"w": distribute_tensor(whole, mesh, [Shard(0)])}


def save_then_lose_a_rank(rank: int, world: int, folder: Path) -> str:
    dcp.save(tensors(world, 1.0), storage_writer=HoldfastWriter(folder, step=1))
    planner = KilledPlanner() if rank == 1 else None
    try:
        dcp.save(tensors(world, 2.0), storage_writer=HoldfastWriter(folder, step=2), planner=planner)
    except BaseException as error:  # noqa: BLE001  whatever gloo says when a peer is gone
        # Not destroyed: the group has lost a member and would wait for it.
        os.write(1, f"{type(error).__name__}\n".encode())
        return "raised"
    return "reported success"


def load_value(rank: int, world: int, folder: Path) -> list[float]:
    state = tensors(world, 0.0)
    dcp.load(state, storage_reader=HoldfastReader(folder))
    return state["w"].full_tensor().unique().tolist()


def save_value(rank: int, world: int, folder: Path, value: float) -> None:
    dcp.save(tensors(world, value), storage_writer=HoldfastWriter(folder, step=int(value)))


def test_a_rank_killed_during_a_save_leaves_the_checkpoint_before_it(tmp_path: Path) -> None:
    assert run_ranks(2, save_then_lose_a_rank, tmp_path) == ["raised", None]
    assert len(list((tmp_path / "ckpt").iterdir())) == 2
    assert run_ranks(2, load_value, tmp_path) == [[1.0], [1.0]]
    run_ranks(2, save_value, tmp_path, 3.0)
    assert [saved.step for saved in checkpoints(tmp_path)] == [3, 1]
    assert len(list((tmp_path / "ckpt").iterdir())) == 2, "what the dead job left was not swept"


def fail_then_save(rank: int, world: int, folder: Path) -> tuple[list[int], str]:
    with HoldfastWriter(folder, step=1) as writer:
        try:
            planner = FailingPlanner() if rank == 1 else None
            dcp.save(tensors(world, 1.0), storage_writer=writer, planner=planner)
        except CheckpointException as error:
            failed = {number: repr(pair[0]) for number, pair in error.failures.items()}
        dcp.save(tensors(world, 2.0), checkpoint_id="step-2", storage_writer=writer)
    return sorted(failed), failed[1]


def test_a_failure_on_one_rank_is_raised_on_all_and_commits_nothing(tmp_path: Path) -> None:
    for failed, why in run_ranks(2, fail_then_save, tmp_path):
        assert failed == [1]
        assert "this rank's memory is gone" in why
    assert [saved.step for saved in checkpoints(tmp_path)] == [2]
    assert len(list((tmp_path / "ckpt").iterdir())) == 1, "the failed save was not abandoned"


def save_to_own_folder(rank: int, world: int, folder: Path) -> str:
    try:
        dcp.save(tensors(world, 1.0), storage_writer=HoldfastWriter(folder / str(rank), step=1))
    except CheckpointException as error:
        return str(error.failures[1][0])
    return "saved"


def test_a_folder_that_the_ranks_do_not_share_is_refused(tmp_path: Path) -> None:
    HoldfastWriter(tmp_path / "1").close()
    for why in run_ranks(2, save_to_own_folder, tmp_path):
        assert "on a file system that all ranks share" in why
    assert checkpoints(tmp_path / "0") == []


def save_in_a_process(rank: int, world: int, folder: Path) -> list[int]:
    kind = dcp.state_dict_saver.AsyncCheckpointerType.PROCESS
    writer = HoldfastWriter(folder)
    for step in (1, 2):
        state = {"w": torch.full((4,), float(step)), "step": step}
        saving = dcp.async_save(
            state, checkpoint_id=str(step), storage_writer=writer, async_checkpointer_type=kind
        )
        saving.result(60)
    # Now this process: the other one holds the folder, and is its child.
    dcp.save({"w": torch.full((4,), 3.0), "step": 3}, checkpoint_id="3", storage_writer=writer)
    state = {"w": torch.zeros(4), "step": 4}
    dcp.async_save(
        state, checkpoint_id="4", storage_writer=writer, async_checkpointer_type=kind
    ).result(60)  # fmt: skip
    writer.close()
    assert len(list((folder / "writers").iterdir())) == 1, "the two fenced each other off"
    return [saved.step for saved in checkpoints(folder)]


def test_a_process_of_dcps_own_saves_for_this_one_and_both_may_take_turns(tmp_path: Path) -> None:
    assert run_ranks(1, save_in_a_process, tmp_path) == [[4, 3, 2, 1]]
