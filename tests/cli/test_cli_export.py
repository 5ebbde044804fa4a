"""`holdfast export` gives other libraries the same tensors, whole or not at all, and overwrites nothing."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cli_runs import STEPS, TiedModel, flip
from safetensors.torch import load_file, load_model

import holdfast


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


def test_safetensors_opens_the_exported_weights(holdfast_command, finished_run, tmp_path):
    target = tmp_path / "weights.safetensors"
    answer = holdfast_command("export", finished_run, "--to", target)
    assert answer.code == 0
    loaded = load_file(target)
    assert set(loaded) == set(holdfast.load_weights(finished_run)) - {"head.weight"}
    assert equal(loaded, holdfast.load_weights(finished_run))
    assert "model/head.weight is tied to model/embed.weight" in answer.out
    load_model(TiedModel(), target)


def test_a_torch_file_loads_with_weights_only_and_stays_tied(holdfast_command, finished_run, tmp_path):
    target = tmp_path / "weights.pt"
    assert holdfast_command("export", finished_run, "--to", target, "--step", 5).code == 0
    loaded = torch.load(target, weights_only=True)
    assert equal(holdfast.load_weights(finished_run, 5), loaded)
    assert loaded["embed.weight"].data_ptr() == loaded["head.weight"].data_ptr()
    # Tensors of their own: a view would drag the whole image into the file.
    assert target.stat().st_size < 2 * sum(t.nbytes for t in loaded.values()) + 8192
    TiedModel().load_state_dict(loaded)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp_loads_the_whole_checkpoint(holdfast_command, finished_run, tmp_path):
    target = tmp_path / "exported"
    said = holdfast_command("export", finished_run, "--to", target, "--json").json
    assert said["format"] == "dcp"
    model = TiedModel()
    wanted = {"model": model.state_dict()}
    dcp.load(wanted, checkpoint_id=target, no_dist=True)
    assert equal(holdfast.load_weights(finished_run), wanted["model"])
    names = dcp.FileSystemReader(target).read_metadata().state_dict_metadata
    assert "optimizer.state.0.exp_avg" in names
    assert "run.step" in names


def test_nothing_is_overwritten(holdfast_command, finished_run, tmp_path):
    target = tmp_path / "weights.pt"
    target.write_text("precious")
    answer = holdfast_command("export", finished_run, "--to", target)
    assert answer.code == 1
    assert "exists already" in answer.err
    assert target.read_text() == "precious"


def test_a_failed_export_leaves_nothing(holdfast_command, own_run, own_checkpoint, tmp_path):
    flip(own_checkpoint(20) / "model.safetensors")
    out = tmp_path / "out"
    out.mkdir()
    answer = holdfast_command("export", own_run, "--to", out / "weights.pt", "--step", 20)
    assert answer.code == 1
    assert list(out.iterdir()) == []


def test_a_damaged_newest_checkpoint_is_passed_over_loudly(
    holdfast_command, own_run, own_checkpoint, tmp_path
):
    flip(own_checkpoint(20) / "model.safetensors")
    answer = holdfast_command("export", own_run, "--to", tmp_path / "weights.safetensors", "--json")
    assert answer.code == 3
    assert answer.json["step"] == 15
    assert "passed over" in answer.err


def test_nothing_whole_is_an_error_with_every_reason(holdfast_command, own_run, own_checkpoint, tmp_path):
    for step in STEPS:
        flip(own_checkpoint(step) / "model.safetensors")
    answer = holdfast_command("export", own_run, "--to", tmp_path / "weights.safetensors")
    assert answer.code == 1
    assert answer.err.count("does not match its digest") == len(STEPS)


def test_an_unknown_ending_needs_a_format(holdfast_command, finished_run, tmp_path):
    answer = holdfast_command("export", finished_run, "--to", tmp_path / "weights.onnx")
    assert answer.code == 1
    assert "--format" in answer.err
    assert (
        holdfast_command(
            "export", finished_run, "--to", tmp_path / "weights.onnx", "--format", "safetensors"
        ).code
        == 0
    )


@pytest.fixture
def run_of_two_models(tmp_path):
    path = tmp_path / "two"
    a, b = torch.nn.Linear(2, 2), torch.nn.Linear(3, 3)
    with holdfast.Run(path, teacher=a, Student=b) as run:
        run.end_step()
    return path, b


def test_one_of_several_models_is_chosen_by_name(holdfast_command, run_of_two_models, tmp_path):
    path, student = run_of_two_models
    answer = holdfast_command("export", path, "--to", tmp_path / "a.pt")
    assert answer.code == 1
    assert "teacher, Student; use --model" in answer.err
    assert holdfast_command("export", path, "--to", tmp_path / "b.pt", "--model", "Student").code == 0
    assert equal(student.state_dict(), torch.load(tmp_path / "b.pt", weights_only=True))
