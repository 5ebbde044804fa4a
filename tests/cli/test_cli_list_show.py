"""`holdfast list` and `holdfast show` say what is there, and no more than is true."""

import os
import shutil
import subprocess
import sys

from cli_runs import STEPS, break_manifest, train

import holdfast


def test_list_shows_every_checkpoint_newest_first(holdfast_command, finished_run):
    answer = holdfast_command("list", finished_run)
    rows = answer.out.splitlines()
    assert answer.code == 0
    assert [int(row.split()[0]) for row in rows[1:-1]] == sorted(STEPS, reverse=True)
    assert "kept: best so far" in answer.out
    assert rows[-1].startswith("4 checkpoints")


def test_list_json_agrees_with_the_library(holdfast_command, finished_run):
    said = holdfast_command("list", finished_run, "--json").json
    known = holdfast.checkpoints(finished_run)
    assert [one["name"] for one in said["checkpoints"]] == [one.name for one in known]
    assert said["checkpoints"][0]["metrics"] == dict(known[0].metrics)
    assert set(said["checkpoints"][0]) == {
        "name", "step", "epoch", "created", "bytes", "ranks", "reason", "metrics", "tags", "keep", "problem",
    }  # fmt: skip


def test_list_without_a_checkpoint_is_no_error(holdfast_command, tmp_path):
    (tmp_path / "ckpt").mkdir()
    answer = holdfast_command("list", tmp_path)
    assert answer.code == 0
    assert "no checkpoint yet" in answer.out


def test_list_answers_3_when_one_manifest_is_broken_and_4_when_all_are(
    holdfast_command, own_run, own_checkpoint
):
    break_manifest(own_checkpoint(20))
    answer = holdfast_command("list", own_run)
    assert answer.code == 3
    assert "UNREADABLE" in answer.out
    for step in STEPS[:-1]:
        break_manifest(own_checkpoint(step))
    assert holdfast_command("list", own_run, "--json").code == 4


def test_list_of_a_folder_of_runs_names_them(holdfast_command, own_run):
    answer = holdfast_command("list", own_run.parent)
    assert answer.code == 1
    assert "it contains 1 run: own" in answer.err


def test_list_and_show_do_not_import_torch(finished_run):
    script = (
        "import sys; from holdfast.cli.main import main\n"
        f"run = {str(finished_run)!r}\n"
        "codes = [main(['list', run]), main(['show', run, '--tensors', '--policy']),"
        " main(['verify', run, '--deep']), main(['diff', run, '5', '20']),"
        " main(['prune', run, '--keep', '2'])]\n"
        "assert codes == [0] * 5, codes\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_show_says_what_the_manifest_says(holdfast_command, finished_run):
    answer = holdfast_command("show", finished_run, "10")
    assert answer.code == 0
    for text in (
        "step        10",
        "best so far",
        "a note",
        "asked by the test",
        "loss ",
        "model.safetensors",
    ):
        assert text in answer.out, text


def test_show_takes_the_newest_and_a_name(holdfast_command, finished_run):
    newest = holdfast_command("show", finished_run, "--json").json
    assert newest["step"] == STEPS[-1]
    by_name = holdfast_command("show", finished_run, newest["name"], "--json").json
    assert by_name == newest
    assert all(os.path.getsize(file["path"]) == file["bytes"] for file in newest["files"])


def test_show_of_an_unknown_step_names_the_known_ones(holdfast_command, finished_run):
    answer = holdfast_command("show", finished_run, "7")
    assert answer.code == 1
    assert "there are the steps 5, 10, 15, 20" in answer.err


def test_a_step_of_thousands_of_digits_is_only_unknown(holdfast_command, finished_run):
    answer = holdfast_command("show", finished_run, "1" * 5000)
    assert answer.code == 1
    assert "no checkpoint '1111" in answer.err


def test_show_warns_of_a_newer_unreadable_checkpoint(holdfast_command, own_run, own_checkpoint):
    break_manifest(own_checkpoint(20))
    answer = holdfast_command("show", own_run)
    assert answer.code == 0
    assert "step        15" in answer.out
    assert "newer but unreadable" in answer.err


def test_show_tensors_lists_types_and_shapes_of_training(holdfast_command, finished_run):
    tensors = holdfast_command("show", finished_run, "--tensors", "--json").json["tensors"]
    kinds = {tensor["path"]: (tensor["type"], tensor["shape"]) for tensor in tensors}
    assert kinds["model/shift"] == ("bfloat16", [6])
    assert kinds["model/embed.weight"] == kinds["model/head.weight"] == ("float32", [6, 6])
    assert kinds["optimizer/state_dict/state/0/exp_avg"] == ("bfloat16", [6])


def test_show_policy_counts_the_saves_and_the_failures(holdfast_command, tmp_path):
    path = tmp_path / "run"
    train(path, (2, 4))
    # As if the process had been killed: its last words are missing.
    events = path / "events.jsonl"
    lines = events.read_text().splitlines()
    events.write_text("\n".join(lines[:-1]) + "\n")
    train(path, (6,))
    policy = holdfast_command("show", path, "--policy", "--json").json["policy"]
    assert policy["saves"] == 3
    assert policy["failures"] == 1
    assert policy["starts"] == 2
    assert policy["stall_seconds"] > 0
    assert "1 ended in a failure" in holdfast_command("show", path, "--policy").out


def test_a_journal_that_is_gone_is_no_error(holdfast_command, own_run):
    (own_run / "events.jsonl").unlink()
    answer = holdfast_command("show", own_run, "--policy")
    assert answer.code == 0
    assert "0 saves in the journal" in answer.out


def test_a_foreign_folder_among_checkpoints_is_left_alone(holdfast_command, own_run):
    (own_run / "ckpt" / "e-not-ours").mkdir()
    shutil.copytree(own_run / "writers", own_run / "ckpt" / "copy")
    assert len(holdfast_command("list", own_run, "--json").json["checkpoints"]) == len(STEPS)
