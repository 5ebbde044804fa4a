"""`holdfast prune` removes only with --yes, only what no rule keeps, and says why."""

import pytest
import torch
from cli_runs import break_manifest, flip

import holdfast


def steps_in(path) -> list[int]:
    return sorted(one.step for one in holdfast.checkpoints(path))


def test_without_yes_nothing_is_removed(holdfast_command, own_run):
    answer = holdfast_command("prune", own_run, "--keep", "2")
    assert answer.code == 0
    assert "would remove 1 checkpoint" in answer.out
    assert "kept for ever: best so far" in answer.out
    assert "add --yes" in answer.out
    assert steps_in(own_run) == [5, 10, 15, 20]


def test_the_dry_run_says_exactly_what_yes_then_does(holdfast_command, own_run):
    planned = holdfast_command("prune", own_run, "--keep", "2", "--json").json
    done = holdfast_command("prune", own_run, "--keep", "2", "--yes", "--json").json
    assert planned["dry_run"] is True
    assert done["dry_run"] is False
    assert planned["removed"] == done["removed"] != []
    assert planned["kept"] == done["kept"]
    assert steps_in(own_run) == [10, 15, 20]


def test_rules_in_words_keep_what_they_name(holdfast_command, own_run):
    said = holdfast_command("prune", own_run, "--keep", "latest 2, best 1 of -accuracy", "--json").json
    assert said["removed"] == []
    assert any("best 1 by accuracy" in kept["why"] for kept in said["kept"])


def test_a_damaged_newest_checkpoint_stops_pruning(holdfast_command, own_run, own_checkpoint):
    flip(own_checkpoint(20) / "model.safetensors")
    answer = holdfast_command("prune", own_run, "--keep", "2", "--yes")
    assert answer.code == 3
    assert "nothing was removed" in answer.out
    assert len(list((own_run / "ckpt").iterdir())) == 4


def test_unreadable_checkpoints_stay_as_evidence(holdfast_command, own_run, own_checkpoint):
    break_manifest(own_checkpoint(5))
    said = holdfast_command("prune", own_run, "--keep", "2", "--yes", "--json").json
    assert own_checkpoint(5).is_dir()
    assert any("unreadable" in kept["why"] for kept in said["kept"])


def test_a_run_that_trains_is_not_pruned(holdfast_command, own_run):
    with holdfast.Run(own_run.parent / "live", model=torch.nn.Linear(2, 2)) as run:
        run.save_now().wait()
        answer = holdfast_command("prune", own_run.parent / "live", "--keep", "2", "--yes")
        assert answer.code == 1
        assert "pid" in answer.err


@pytest.mark.parametrize("keep", ["1", "many", "latest 2, latest 3"])
def test_rules_that_make_no_sense_are_refused(holdfast_command, own_run, keep):
    answer = holdfast_command("prune", own_run, "--keep", keep, "--yes")
    assert answer.code == 1
    assert steps_in(own_run) == [5, 10, 15, 20]


def test_an_empty_run_answers_4(holdfast_command, tmp_path):
    (tmp_path / "ckpt").mkdir()
    assert holdfast_command("prune", tmp_path, "--keep", "2").code == 4
