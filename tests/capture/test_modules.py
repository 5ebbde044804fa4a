"""A module's weights under names that do not depend on its wrapping, tied ones tied, frozen ones optional."""

import copy
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from round_trip import images_of, same_bits, states_of
from torch import nn

import holdfast
from holdfast.capture.torch_module import TrackedModule, canonical, unwrap
from holdfast.capture.torch_registry import restore_all, track
from holdfast.errors import IncompatibleState, SetupError


class Tied(nn.Module):
    """Embedding and output share a weight; a convolution is stored channels_last; BatchNorm has buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("ramp", torch.arange(3, dtype=torch.float64))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


def through(module: nn.Module, into: nn.Module, **options: bool) -> nn.Module:
    images, values = images_of(track({"model": module}, **options))
    restore_all(track({"model": into}, **options), states_of(images, values))
    return into


def scramble(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.copy_(torch.rand(tensor.shape) * 9)
    return module


def test_a_module_comes_back_bit_for_bit() -> None:
    model = scramble(Tied())
    back = through(model, scramble(Tied()))
    assert same_bits(dict(back.state_dict()), dict(model.state_dict()))
    assert back.conv.weight.stride() == model.conv.weight.stride()


def test_tied_weights_are_stored_once_and_stay_tied() -> None:
    model = scramble(Tied())
    images, values = images_of(track({"model": model}))
    stored = safetensors.torch.load(images["model.safetensors"])
    assert ("embed.weight" in stored) != ("out.weight" in stored)
    state = states_of(images, values)["model"]
    assert state["embed.weight"] is state["out.weight"]
    back = through(model, scramble(Tied()))
    assert back.out.weight is back.embed.weight


def test_the_weights_file_is_plain_safetensors() -> None:
    model = scramble(Tied())
    images, _ = images_of(track({"model": model}))
    stored = safetensors.torch.load(images["model.safetensors"])
    live = {k: v for k, v in model.state_dict().items() if k in stored}
    assert set(model.state_dict()) - set(stored) <= {"embed.weight", "out.weight"}
    assert same_bits({k: stored[k] for k in live}, live)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("wrap", ["DataParallel", "compile", "both", "inner"])
def test_names_do_not_depend_on_wrappers(wrap: str) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    wrapped: nn.Module = copy.deepcopy(model)
    if wrap == "inner":
        wrapped[0] = torch.compile(wrapped[0])
    if wrap in ("compile", "both"):
        wrapped = torch.compile(wrapped)
    if wrap in ("DataParallel", "both"):
        wrapped = nn.DataParallel(wrapped)
    assert list(TrackedModule("m", wrapped).take()) == list(model.state_dict())
    fresh = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    assert same_bits(dict(through(wrapped, fresh).state_dict()), dict(model.state_dict()))
    # And the other way round: a plain checkpoint into a wrapped module.
    back = through(scramble(model), wrapped)
    assert same_bits(TrackedModule("m", back).take(), TrackedModule("m", model).take())


def test_distributed_wrapper_is_seen_through(tmp_path: object) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/init", rank=0, world_size=1)
    try:
        model = nn.Linear(2, 2)
        wrapped = nn.parallel.DistributedDataParallel(model)
        assert unwrap(wrapped) is model
        assert list(TrackedModule("m", wrapped).take()) == ["weight", "bias"]
    finally:
        torch.distributed.destroy_process_group()


def test_a_users_own_name_that_resembles_a_wrapper_is_left_alone() -> None:
    assert canonical("module.weight") == "module.weight"
    assert canonical("a._orig_mod.b") == "a.b"


def test_frozen_parameters_can_be_left_out() -> None:
    model = nn.Sequential(nn.Linear(50, 50), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    images, values = images_of(track({"model": model}, save_frozen=False))
    state = states_of(images, values)["model"]
    assert set(state) == {"1.weight", "1.bias"}
    fresh = nn.Sequential(nn.Linear(50, 50), nn.Linear(2, 2))
    fresh[0].requires_grad_(False)
    mine = fresh[0].weight.clone()
    restore_all(track({"model": fresh}, save_frozen=False), {"model": state})
    assert torch.equal(fresh[1].weight, model[1].weight)
    assert torch.equal(fresh[0].weight, mine)


def test_buffers_of_frozen_layers_are_always_kept() -> None:
    model = nn.BatchNorm1d(3).requires_grad_(False)
    images, values = images_of(track({"model": model}, save_frozen=False))
    assert "running_mean" in states_of(images, values)["model"]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (lambda: nn.Linear(3, 3), r"\[2, 3\] in the checkpoint and \[3, 3\] here"),
        (lambda: nn.Linear(3, 2, bias=False), "unexpected 'bias'"),
        (lambda: nn.Sequential(nn.Linear(3, 2)), "missing '0.weight'"),
        (
            lambda: nn.Linear(3, 2, dtype=torch.float64),
            "torch.float32 in the checkpoint and torch.float64 here",
        ),
    ],
    ids=["shape", "unexpected", "missing", "dtype"],
)
def test_a_module_that_does_not_fit_is_refused_and_untouched(other: object, says: str) -> None:
    images, values = images_of(track({"good": nn.Linear(2, 2), "model": nn.Linear(3, 2)}))
    good, bad = nn.Linear(2, 2), other()  # type: ignore[operator]
    before = copy.deepcopy((good.state_dict(), bad.state_dict()))
    with pytest.raises(IncompatibleState, match=says):
        restore_all(track({"good": good, "model": bad}), states_of(images, values))
    assert same_bits([dict(d) for d in before], [dict(good.state_dict()), dict(bad.state_dict())])


def test_a_checkpoint_that_lacks_an_object_is_refused_by_name() -> None:
    images, values = images_of(track({"model": nn.Linear(1, 1)}))
    with pytest.raises(IncompatibleState, match=r"lacks 'critic'; it holds 'model'"):
        restore_all(track({"model": nn.Linear(1, 1), "critic": nn.Linear(1, 1)}), states_of(images, values))


def test_module_extra_state_survives() -> None:
    class Counting(nn.Linear):
        seen = 0

        def get_extra_state(self) -> dict[str, object]:
            return {"seen": self.seen, "where": (1, [2.5])}

        def set_extra_state(self, state: dict[str, object]) -> None:
            assert state["where"] == (1, [2.5])
            self.seen = state["seen"]  # type: ignore[assignment]

    model = Counting(1, 1)
    model.seen = 41
    assert through(model, Counting(1, 1)).seen == 41


def test_averaged_model_survives_with_its_count() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(3):
        scramble(model)
        average.update_parameters(model)
    fresh = torch.optim.swa_utils.AveragedModel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    back = through(average, fresh)
    assert int(back.n_averaged) == 3
    assert same_bits(dict(back.state_dict()), dict(average.state_dict()))


def test_several_models_have_a_file_each() -> None:
    images, values = images_of(track({"generator": nn.Linear(1, 2), "Critic": nn.Linear(2, 1)}))
    assert sorted(images) == ["generator.safetensors", "weights-001.safetensors"]
    assert set(states_of(images, values)) == {"generator", "Critic"}


@pytest.mark.parametrize(
    "wrong", [object(), nn.Linear, 3, {"state_dict": 1}], ids=["an object", "a class", "a number", "a dict"]
)
def test_what_cannot_be_tracked_is_refused_by_name(wrong: object) -> None:
    with pytest.raises(SetupError, match=r"cannot track 'thing'"):
        track({"thing": wrong})


@pytest.mark.parametrize("name", ["rng", "run"])
def test_reserved_names_are_refused(name: str) -> None:
    with pytest.raises(SetupError, match=r"taken by holdfast itself"):
        track({"model": nn.Linear(1, 1), name: torch.optim.swa_utils.AveragedModel(nn.Linear(1, 1))})


def test_nothing_to_track_is_refused() -> None:
    with pytest.raises(SetupError, match=r"nothing to track"):
        track({})


class Versioned(nn.Module):
    """As torchvision's MNASNet: it looks at the version that its state was saved with, and refuses others."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.seen: Any = None

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *args: Any) -> None:
        self.seen = local_metadata.get("version")
        if self.seen not in (1, 2):
            raise ValueError(f"version should be set to 1 or 2 instead of {self.seen}")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_module_is_told_the_version_that_its_state_was_saved_with(tmp_path: Path, compiled: bool) -> None:
    def build() -> tuple[Versioned, nn.Module]:
        inside = Versioned()
        whole = nn.Sequential(torch.compile(inside) if compiled else inside)  # type: ignore[arg-type]
        return inside, whole

    _, model = build()
    with holdfast.Run(tmp_path, model=model, every="1000 steps") as run:
        run.end_step()
    for load in (
        lambda m: holdfast.restore(tmp_path, {"model": m}),
        lambda m: nn.Sequential(m[0]._orig_mod if compiled else m[0]).load_state_dict(
            holdfast.load_weights(tmp_path)
        ),
    ):
        inside, again = build()
        load(again)
        assert inside.seen == 2


def test_a_state_saved_without_versions_is_loaded_as_before() -> None:
    model = TrackedModule("model", nn.BatchNorm1d(2))
    state = dict(model.take())
    TrackedModule("model", nn.BatchNorm1d(2)).apply(state)
