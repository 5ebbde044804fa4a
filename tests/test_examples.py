"""Every example runs, and runs again on what it left behind."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))

REQUIRED = ("holdfast", "torch", "numpy")


@pytest.fixture
def run_example(monkeypatch, capsys):
    def run(example: Path, path: Path) -> str:
        monkeypatch.setattr(sys, "argv", [str(example), str(path)])
        try:
            runpy.run_path(str(example), run_name="__main__")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in REQUIRED:
                raise
            pytest.skip(f"needs {error.name}, which is optional")
        out: str = capsys.readouterr().out
        return out

    return run


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.stem for example in EXAMPLES])
def test_an_example_runs_twice_in_one_folder(example, tmp_path, run_example):
    assert run_example(example, tmp_path / "run").strip()
    run_example(example, tmp_path / "run")


def test_the_first_example_continues_where_it_was_killed(tmp_path, run_example):
    example = EXAMPLES[0]
    # A real process and a real kill: nothing of it gets to run any more.
    killed = subprocess.Popen(
        [sys.executable, "-u", str(example), str(tmp_path / "run")],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert killed.stdout is not None
    for line in killed.stdout:
        if line.startswith("epoch 6"):
            killed.kill()
            break
    killed.wait(timeout=60)
    killed.stdout.close()
    again = run_example(example, tmp_path / "run")
    assert "continuing at step" in again
    assert "epoch 9: step 320" in again
    assert "done after step 320" in again
