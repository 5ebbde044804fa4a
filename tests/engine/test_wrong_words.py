"""What cannot be meant is refused when it is given, and what cannot be heard is said."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from torch import nn

import holdfast


@pytest.mark.parametrize("path", ["", "  "])
def test_a_run_without_a_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(holdfast.SetupError, match="folder"):
        holdfast.Run(path, model=nn.Linear(1, 1))
    assert os.listdir(tmp_path) == []


def test_a_bucket_as_home_is_refused_with_the_line_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(holdfast.SetupError, match=r'tiers=\["run", "s3://bucket/run"\]'):
        holdfast.Run("s3://bucket/run", model=nn.Linear(1, 1))
    assert os.listdir(tmp_path) == []


def test_a_run_that_hears_no_signals_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def train() -> None:
        with holdfast.Run(tmp_path, model=nn.Linear(1, 1)) as run:
            run.end_step()

    thread = threading.Thread(target=train, name="trainer")
    thread.start()
    thread.join()
    assert "'trainer'" in caplog.text
    assert "SIGTERM" in caplog.text
    assert [c.step for c in holdfast.checkpoints(tmp_path)] == [1]


CTRL_C = """
import os, signal, sys, holdfast, torch
model = torch.nn.Linear(1, 1)
with holdfast.Run(sys.argv[1], model=model) as run:
    run.end_step()
    os.kill(os.getpid(), signal.SIGINT)
    # Deep inside C, where no handler runs: what is said must not wait for it.
    sys.stdin.read()
    for _ in range(1000):
        run.end_step()
"""


def test_the_first_ctrl_c_is_answered_at_once(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CTRL_C, str(tmp_path)],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stderr is not None
        assert child.stdin is not None
        line = ""
        while "Ctrl-C" not in line:
            line = child.stderr.readline()
            assert line, "it ended without a word"
        assert "saving at the next step boundary" in line
        child.stdin.close()
        assert child.wait(60) == 130


def test_an_open_run_leaves_no_thread_and_no_descriptor_behind(tmp_path: Path) -> None:
    def open_ones() -> int:
        return len(os.listdir("/proc/self/fd"))

    def once() -> None:
        with holdfast.Run(tmp_path, model=nn.Linear(1, 1)) as run:
            run.end_step()
        for thread in threading.enumerate():
            if thread.name == "holdfast-signals":
                thread.join(30)

    once()
    before = open_ones()
    for _ in range(3):
        once()
    assert open_ones() == before
    assert "holdfast-signals" not in [t.name for t in threading.enumerate()]
