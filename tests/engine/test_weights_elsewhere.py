"""The weights of any checkpoint open with the safetensors library, and without building anything."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import holdfast
from holdfast.errors import SetupError
from holdfast.testing.torch_loops import Objects


def test_every_weights_file_opens_with_safetensors_and_holds_equal_tensors(tmp_path: Path) -> None:
    objects = Objects()
    batch = next(iter(objects.loader))
    expected = {}
    with holdfast.Run(tmp_path, every="1000 steps", keep=20, **objects.tracked) as run:
        for _ in range(4):
            objects.train_on(batch)
            run.end_step()
            run.save_now().wait()
            expected[run.step] = {k: v.clone() for k, v in objects.model.state_dict().items()}
    found = {c.step: c for c in holdfast.checkpoints(tmp_path)}
    assert set(found) == set(expected)
    for step, weights in expected.items():
        loaded = safetensors.torch.load_file(found[step].files["model.safetensors"])
        # A tied weight is stored once, under one of its names.
        assert set(weights) - set(loaded) <= {"again.weight", "mix.weight"}
        assert all(torch.equal(loaded[name], weights[name]) for name in loaded)
        ours = holdfast.load_weights(tmp_path, step=step)
        assert list(ours) == list(weights)
        assert all(torch.equal(ours[name], weights[name]) for name in weights)
        fresh = Objects().model
        fresh.load_state_dict(ours)
        safetensors.torch.load_model(fresh, found[step].files["model.safetensors"])


def test_every_dtype_that_safetensors_knows_is_stored_as_itself(tmp_path: Path) -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("float16", "bfloat16", "float64", "int8", "uint8", "int64", "bool", "complex64"):
                values = torch.randint(0, 2, (3, 5)).to(getattr(torch, name))
                self.register_buffer(f"of_{name}", values)
            self.register_buffer(
                "channels_last", torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
            )
            self.register_buffer("scalar", torch.tensor(3.5))

    model = Many()
    with holdfast.Run(tmp_path, model=model) as run:
        run.save_now().wait()
    [found] = holdfast.checkpoints(tmp_path)
    loaded = safetensors.torch.load_file(found.files["model.safetensors"])
    assert {k: v.dtype for k, v in loaded.items()} == {k: v.dtype for k, v in model.state_dict().items()}
    assert all(torch.equal(loaded[k], v) for k, v in model.state_dict().items())


def test_restore_takes_single_objects(tmp_path: Path) -> None:
    objects = Objects()
    with holdfast.Run(tmp_path, **objects.tracked) as run:
        objects.train_on(next(iter(objects.loader)))
        run.end_step()
    fresh = Objects(seed=4)
    randomness = torch.get_rng_state()
    done = holdfast.restore(tmp_path, {"model": fresh.model})
    assert done.step == 1
    assert all(
        torch.equal(a, b) for a, b in zip(fresh.model.parameters(), objects.model.parameters(), strict=True)
    )
    assert not fresh.optimizer.state
    assert torch.equal(randomness, torch.get_rng_state())


def test_which_model_must_be_said_where_there_are_several(tmp_path: Path) -> None:
    with holdfast.Run(tmp_path, generator=nn.Linear(1, 2), critic=nn.Linear(2, 1)) as run:
        run.save_now().wait()
    assert set(holdfast.load_weights(tmp_path, model="critic")) == {"weight", "bias"}
    with pytest.raises(SetupError, match=r"it holds 'generator', 'critic'"):
        holdfast.load_weights(tmp_path)
