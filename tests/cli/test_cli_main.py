"""The command line as a whole: what goes wrong becomes one line and the documented exit code."""

import os
import subprocess
import sys
import unicodedata

import pytest
import torch
from cli_runs import Answer, train

import holdfast
from holdfast.cli import opened_run
from holdfast.cli.main import VERBS
from holdfast.contents import dcp
from holdfast.errors import InternalError

READING = (
    ["list"],
    ["show", "--tensors", "--policy"],
    ["verify", "--deep"],
    ["diff", "1", "1"],
    ["prune", "--keep", "2"],
)


def spawn(*arguments: str) -> Answer:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", *arguments], capture_output=True, text=True, timeout=120
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def test_version_is_that_of_the_package(holdfast_command):
    answer = holdfast_command("--version")
    assert answer == Answer(0, f"holdfast {holdfast.__version__}\n", "")


def test_no_verb_and_an_unknown_verb_are_wrong_usage(holdfast_command):
    assert holdfast_command().code == 2
    answer = holdfast_command("lsit", "runs/x")
    assert answer.code == 2
    assert "invalid choice: 'lsit'" in answer.err


def test_help_names_every_verb_without_importing_any(holdfast_command):
    answer = holdfast_command("--help")
    assert answer.code == 0
    assert all(
        f"    {verb}" in answer.out for verb in ("demo", "list", "show", "verify", "diff", "export", "prune")
    )


@pytest.mark.parametrize("verb", READING)
def test_a_missing_folder_is_one_line_and_a_hint(holdfast_command, verb, tmp_path):
    missing = tmp_path / "missing"
    answer = holdfast_command(verb[0], missing, *verb[1:])
    assert answer.code == 1
    assert answer.err.splitlines() == [
        f"holdfast: there is no folder {missing}",
        "  hint: give the path of a run",
    ]
    assert not missing.exists(), "looking must not create anything"


def test_json_errors_are_json(holdfast_command, tmp_path):
    answer = holdfast_command("list", tmp_path / "missing", "--json")
    assert answer.json["error"]["kind"] == "StoreNotFound"
    assert set(answer.json["error"]) == {"kind", "message", "hint"}


@pytest.mark.parametrize("place", [0, 1])
def test_debug_shows_the_traceback_wherever_it_stands(tmp_path, place):
    arguments = ["list", str(tmp_path / "missing")]
    arguments.insert(place, "--debug")
    answer = spawn(*arguments)
    assert answer.code == 1
    assert "Traceback" in answer.err
    assert "StoreNotFound" in answer.err


def test_our_own_bug_asks_to_be_reported(holdfast_command, finished_run, monkeypatch):
    def broken(options: object) -> int:
        raise InternalError("the impossible happened")

    monkeypatch.setattr("holdfast.cli.stored.list_cmd.run", broken)
    answer = holdfast_command("list", finished_run)
    assert answer.code == 1
    assert "please report it" in answer.err


def test_ctrl_c_answers_130(holdfast_command, finished_run, monkeypatch):
    def interrupted(options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.cli.stored.list_cmd.run", interrupted)
    assert holdfast_command("list", finished_run).code == 130


def test_a_reader_that_leaves_early_is_no_error(finished_run):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as nobody:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast.cli.main", "list", str(finished_run)],
            stdout=nobody, stderr=subprocess.PIPE, timeout=120,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_terminal_without_unicode_gets_question_marks(finished_run):
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", "show", str(finished_run), "--tensors"],
        capture_output=True, timeout=120, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done.stdout.decode("ascii")


def test_an_unreadable_folder_is_an_error_and_not_a_traceback(holdfast_command, own_run):
    (own_run / "ckpt").rename(own_run / "elsewhere")
    (own_run / "ckpt").symlink_to(own_run / "elsewhere")
    answer = holdfast_command("list", own_run)
    assert answer.code == 1
    assert "hint" in answer.err


def test_looking_changes_nothing(holdfast_command, own_run):
    def state() -> dict[str, tuple[int, int]]:
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in own_run.rglob("*")}

    before = state()
    for verb in READING[:-2]:
        assert holdfast_command(verb[0], own_run, *verb[1:]).code == 0
    assert holdfast_command("diff", own_run, "5", "20").code == 0
    assert holdfast_command("prune", own_run, "--keep", "2").code == 0
    assert state() == before


class Hostile:
    """An object whose state has names that would steer a terminal."""

    def state_dict(self) -> dict[str, object]:
        return {
            "\x1b[31mred\x1b[0m": torch.ones(2),
            "\x9b2J": "\x1b]0;title\x07",
            "a\u202eb": 1,
            "line\nbreak": 2,
        }

    def load_state_dict(self, state: dict[str, object]) -> None: ...


def test_nothing_in_a_checkpoint_can_steer_the_terminal(holdfast_command, tmp_path):
    path = tmp_path / "hostile"
    with holdfast.Run(path, keep=5, evil=Hostile()) as run:
        run.end_step()
        run.save_now(
            "\x1b[2Jgone \x9b31m", keep="\x1b]8;;http://x\x07link", notes="bell\x07 \u202e\r over"
        ).wait()
        run.extras["\x1bPq"] = "\x1b[5mblink"
        run.end_step()
    outputs = [holdfast_command(verb[0], path, *verb[1:]) for verb in READING[:3]]
    outputs.append(holdfast_command("diff", path, "1", "2"))
    outputs.append(holdfast_command("diff", path, "1", "2", "--json"))
    outputs.append(holdfast_command("show", path, "1", "--json"))
    outputs.append(holdfast_command("show", path, "\x1b[31m7"))
    for answer in outputs:
        steering = [
            c for c in answer.out + answer.err if c != "\n" and unicodedata.category(c) in ("Cc", "Cf")
        ]
        assert steering == []
    assert "gone" in outputs[0].out


def test_a_manifest_of_the_wrong_shape_is_a_problem_and_not_a_crash(
    holdfast_command, own_run, own_checkpoint
):
    for name in ("MANIFEST", "MANIFEST.2"):
        (own_checkpoint(20) / name).write_bytes(b"[]\nsha256:" + b"0" * 64 + b"\n")
        (own_checkpoint(15) / name).write_bytes(b"\xff\xfe\x00" * 100)
    assert holdfast_command("list", own_run).code == 3
    assert holdfast_command("verify", own_run).code == 3


def test_every_verb_in_the_table_can_be_asked_for_help(holdfast_command):
    for verb in VERBS:
        answer = holdfast_command(verb, "--help")
        assert answer.code == 0, verb
        assert "--json" in answer.out, f"{verb} has no --json"


def test_two_runs_in_one_process_do_not_disturb_each_other(holdfast_command, tmp_path):
    for name in ("a", "b"):
        train(tmp_path / name, (1, 2))
    assert holdfast_command("diff", tmp_path / "a", "2", "2", "--other-run", tmp_path / "b").code == 0


def test_list_imports_neither_torch_nor_numpy(finished_run):
    code = (
        "import sys; from holdfast.cli.main import main\n"
        "main(['list', sys.argv[1]])\n"
        "sys.exit(bool({'torch', 'numpy'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(finished_run)], timeout=120).returncode == 0


def test_a_state_of_dcp_is_known_by_the_key_that_its_reader_looks_for():
    assert opened_run.DCP_KEY == dcp.DCP_KEY
