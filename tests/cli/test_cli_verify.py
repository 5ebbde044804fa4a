"""`holdfast verify` finds damage, names it, and answers with the documented codes."""

from dataclasses import replace

import pytest
import torch
from cli_runs import STEPS, break_manifest, flip
from torch.utils.data import DataLoader, TensorDataset

import holdfast
from holdfast.data.audit import audit_run


def test_whole_checkpoints_answer_0(holdfast_command, finished_run):
    answer = holdfast_command("verify", finished_run, "--deep", "--json")
    assert answer.code == 0
    assert [one["whole"] for one in answer.json["checkpoints"]] == [True] * len(STEPS)
    assert all(one["bytes_checked"] > 0 for one in answer.json["checkpoints"])


def test_a_flipped_bit_is_found_deeply_and_the_rest_stays_usable(holdfast_command, own_run, own_checkpoint):
    flip(own_checkpoint(15) / "state.safetensors")
    assert holdfast_command("verify", own_run).code == 0, "sizes alone cannot show it"
    answer = holdfast_command("verify", own_run, "--deep")
    assert answer.code == 3
    assert "does not match its digest" in answer.out
    assert "3 of 4 checkpoints whole" in answer.out


def test_a_short_file_is_found_without_reading_it(holdfast_command, own_run, own_checkpoint):
    file = own_checkpoint(20) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    answer = holdfast_command("verify", own_run)
    assert answer.code == 3
    assert "DAMAGED" in answer.out


def test_nothing_whole_answers_4(holdfast_command, own_run, own_checkpoint):
    for step in STEPS:
        flip(own_checkpoint(step) / "model.safetensors")
    assert holdfast_command("verify", own_run, "--deep").code == 4


def test_an_empty_run_answers_4(holdfast_command, tmp_path):
    (tmp_path / "ckpt").mkdir()
    assert holdfast_command("verify", tmp_path).code == 4


def test_step_checks_only_that_step(holdfast_command, own_run, own_checkpoint):
    break_manifest(own_checkpoint(20))
    assert holdfast_command("verify", own_run, "--step", 15, "--deep").code == 0
    assert holdfast_command("verify", own_run, "--step", 20).code == 4
    answer = holdfast_command("verify", own_run, "--step", 16)
    assert answer.code == 1
    assert "no checkpoint of step 16" in answer.err


def test_data_without_an_audit_says_how_to_get_one(holdfast_command, finished_run):
    answer = holdfast_command("verify", finished_run, "--data")
    assert answer.code == 1
    assert "audit_data=True" in answer.err


@pytest.fixture
def audited_run(tmp_path):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(12, 2)), batch_size=4, shuffle=True)
    path = tmp_path / "audited"
    with holdfast.Run(path, audit_data=True, model=model, optimizer=optimizer) as run:
        for _ in run.epochs(2):
            for (x,) in run.batches(loader):
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                run.end_step()
    return path


def test_data_proves_every_sample_once(holdfast_command, audited_run):
    answer = holdfast_command("verify", audited_run, "--data")
    assert answer.code == 0
    assert "every batch accounted for" in answer.out
    said = holdfast_command("verify", audited_run, "--data", "--json").json["data"]
    assert said["violations"] == []
    assert said["ok"] is True
    assert sum(one["samples"] for one in said["passes"]) == 24


def test_a_violated_audit_answers_3(holdfast_command, audited_run, monkeypatch):
    honest = audit_run(audited_run)
    monkeypatch.setattr(
        "holdfast.cli.stored.verify_cmd.audit_run",
        lambda path: replace(honest, violations=["index 3 came twice \x1b[2J"]),
    )
    answer = holdfast_command("verify", audited_run, "--data")
    assert answer.code == 3
    assert "VIOLATED" in answer.out
    assert "index 3 came twice" in answer.out
    assert "\x1b" not in answer.out
