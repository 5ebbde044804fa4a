"""A checkpoint says where and with what it was made, and never holds a secret of the environment."""

from pathlib import Path

import pytest
import torch

import holdfast
from holdfast.capture.environment import describe_environment, git_commit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_nothing_but_the_allowed_variables_is_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-one")
    monkeypatch.setenv("MY_TOKEN", "canary-two")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "password=canary-three")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    seen = describe_environment(tmp_path)
    assert "canary" not in repr(seen)
    assert seen["variables"]["SLURM_JOB_ID"] == "4711"
    assert seen["versions"]["torch"] != "unknown"


def test_no_file_of_a_run_holds_a_secret_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("API_TOKEN", "canary-7f3a")
    model = torch.nn.Linear(2, 2)
    with holdfast.Run(tmp_path / "run", model=model) as run:
        run.save_now().wait()
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {"MANIFEST", "events.jsonl"} <= {path.name for path in files}
    assert [path for path in files if b"canary-7f3a" in path.read_bytes()] == []


def repository(root: Path, head: str) -> Path:
    (root / ".git" / "refs" / "heads").mkdir(parents=True)
    (root / ".git" / "HEAD").write_text(head)
    return root


def test_commit_of_a_branch_is_found_from_below(tmp_path: Path) -> None:
    root = repository(tmp_path, "ref: refs/heads/main\n")
    (root / ".git/refs/heads/main").write_text(COMMIT + "\n")
    (root / "deep/er").mkdir(parents=True)
    assert git_commit(root / "deep/er") == COMMIT


def test_packed_and_detached_commits_are_found(tmp_path: Path) -> None:
    root = repository(tmp_path / "packed", "ref: refs/heads/main\n")
    (root / ".git/packed-refs").write_text(f"# pack-refs\n{COMMIT} refs/heads/main\n")
    assert git_commit(root) == COMMIT
    assert git_commit(repository(tmp_path / "detached", COMMIT)) == COMMIT


@pytest.mark.parametrize("head", ["", "ref: ../../etc/passwd", "ref: refs/heads/none", "not a commit"])
def test_an_odd_repository_is_no_error(head: str, tmp_path: Path) -> None:
    assert git_commit(repository(tmp_path, head)) is None
