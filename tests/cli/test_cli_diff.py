"""`holdfast diff` reports exactly what changed, with NumPy alone."""

import math

import numpy as np
import pytest
import torch
from cli_runs import flip, train

import holdfast
from holdfast.contents.diff import compare, show_value
from holdfast.contents.numbers import largest_difference, numbers_in
from holdfast.contents.state import Leaf


def test_a_checkpoint_is_identical_to_itself(holdfast_command, finished_run):
    answer = holdfast_command("diff", finished_run, "10", "10", "--exit-code")
    assert answer.code == 0
    assert "identical" in answer.out


def test_exit_code_answers_5_where_asked_for(holdfast_command, finished_run):
    assert holdfast_command("diff", finished_run, "5", "20").code == 0
    assert holdfast_command("diff", finished_run, "5", "20", "--exit-code").code == 5


def test_differences_equal_those_that_torch_computes(holdfast_command, finished_run):
    said = holdfast_command("diff", finished_run, "5", "newest", "--json").json
    before, after = holdfast.load_weights(finished_run, 5), holdfast.load_weights(finished_run, 20)
    changed = {change["path"]: change for change in said["tensors"]}
    for name, old in before.items():
        new = after[name]
        expected = (old.double() - new.double()).abs().max().item()
        if torch.equal(old, new):
            assert f"model/{name}" not in changed
        else:
            change = changed[f"model/{name}"]
            assert change["max_abs"] == pytest.approx(expected, rel=1e-12)
            assert change["differing"] == int((old != new).sum())
    assert {"path": "run/extras/note", "before": "'step 5'", "after": "'step 20'"} in said["values"]
    assert said["identical"] is False


def test_two_runs_of_one_seed_have_equal_tensors_and_two_seeds_do_not(
    holdfast_command, finished_run, tmp_path
):
    train(tmp_path / "again", (5,))
    train(tmp_path / "other", (5,), seed=1)
    same = holdfast_command("diff", finished_run, "5", "5", "--other-run", tmp_path / "again", "--json").json
    assert same["tensors"] == []
    assert same["tensors_equal"] > 0
    other = holdfast_command("diff", finished_run, "5", "5", "--other-run", tmp_path / "other", "--json").json
    assert "model/embed.weight" in [change["path"] for change in other["tensors"]]


def test_objects_of_another_form_are_named(holdfast_command, finished_run, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    model.register_parameter("shift", torch.nn.Parameter(torch.zeros(7)))
    with holdfast.Run(tmp_path / "other", model=model) as run:
        run.end_step()
    said = holdfast_command("diff", finished_run, "5", "1", "--other-run", tmp_path / "other", "--json").json
    assert "model/embed.weight" in said["removed"]
    assert "model/0.weight" in said["added"]
    assert {"path": "model/shift", "before": "bfloat16[6]", "after": "float32[7]"} in said["reshaped"]
    assert holdfast_command("diff", finished_run, "5", "1", "--other-run", tmp_path / "other").code == 0


def test_damaged_bytes_are_never_compared(holdfast_command, own_run, own_checkpoint):
    flip(own_checkpoint(20) / "model.safetensors")
    answer = holdfast_command("diff", own_run, "15", "20")
    assert answer.code == 1
    assert "does not match its digest" in answer.err


def test_long_lists_are_cut_unless_all_is_asked_for(holdfast_command, finished_run, monkeypatch):
    monkeypatch.setattr("holdfast.cli.stored.diff_cmd._SHOWN", 2)
    assert "more; --all prints them" in holdfast_command("diff", finished_run, "5", "20").out
    assert "more; --all prints them" not in holdfast_command("diff", finished_run, "5", "20", "--all").out


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_every_8_bit_float_has_the_value_that_torch_gives_it(kind):
    codes = torch.arange(256, dtype=torch.uint8)
    expected = codes.view(getattr(torch, kind)).to(torch.float64).numpy()
    np.testing.assert_array_equal(numbers_in(codes.numpy(), kind), expected)


def test_every_bfloat16_has_the_value_that_torch_gives_it():
    codes = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    expected = codes.view(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(numbers_in(codes.view(torch.uint8).numpy(), "bfloat16"), expected)


def test_unknown_types_have_no_numbers():
    assert numbers_in(np.zeros(4, np.uint8), "float8_e4m3fnuz") is None
    assert numbers_in(np.zeros(4, np.uint8), "no such type") is None


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (np.array([-(2**63)]), np.array([2**63 - 1]), float(2**64 - 1)),
        (np.array([0, 200], np.uint8), np.array([250, 200], np.uint8), 250.0),
        (np.array([True, False]), np.array([True, True]), 1.0),
        (np.array([1.0, math.nan, math.inf]), np.array([1.5, 2.0, 3.0]), 0.5),
        (np.array([1 + 1j]), np.array([1 + 4j]), 3.0),
    ],
)
def test_the_largest_difference_neither_overflows_nor_drowns_in_nan(a, b, expected):
    assert largest_difference(a, b) == expected


def test_values_are_compared_by_type_and_bits():
    def differs(one: object, two: object) -> bool:
        a, b = {("x",): Leaf("x", one)}, {("x",): Leaf("x", two)}
        return not compare(a, b, lambda t: memoryview(b""), lambda t: memoryview(b"")).is_identical

    assert differs(1, True)
    assert differs(0.0, -0.0)
    assert not differs(math.nan, math.nan)
    assert not differs(np.float32(2), np.float32(2))
    assert differs(np.float32(2), np.float64(2))
    assert differs({}, [])


def test_long_bytes_are_shown_by_their_length():
    assert show_value(b"x" * 5000).startswith("5,000 bytes")
