"""Runs made once by holdfast.Run, copied for tests that damage them; and the command line itself."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runs import Answer, train

from holdfast.cli.main import main


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four checkpoints, steps 5, 10 (kept for ever), 15 and 20. Only to be read."""
    path = tmp_path_factory.mktemp("runs") / "finished"
    train(path)
    return path


@pytest.fixture
def own_run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(finished_run, tmp_path / "own"))


@pytest.fixture
def own_checkpoint(own_run: Path) -> Callable[[int], Path]:
    def folder(step: int) -> Path:
        (found,) = (own_run / "ckpt").glob(f"*-s{step:012d}-*")
        return found

    return folder


@pytest.fixture
def holdfast_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Run a command line in this process; usage errors included."""

    def run(*arguments: object) -> Answer:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = capsys.readouterr()
        return Answer(code, out, err)

    return run
