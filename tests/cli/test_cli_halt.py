"""`holdfast halt`: a running training ends with a checkpoint, is not restarted, and none starts."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cli_runs import Answer

import holdfast
from holdfast.checkpoints.find import committed
from holdfast.events import RunEnded
from holdfast.jobs.exit_codes import DO_NOT_RESTART
from holdfast.jobs.halt import FILE, HaltNote, read_halt, write_halt
from holdfast.stores.journal import read_events
from holdfast.stores.store import CheckpointStore
from holdfast.testing import FakeClock

Command = Callable[..., Answer]


def a_run(folder: Path, clock: FakeClock | None = None, **options: object) -> holdfast.Run:
    model = torch.nn.Linear(2, 2)
    return holdfast.Run(folder, every="100000 steps", clock=clock, model=model, **options)  # type: ignore[arg-type]


def train(folder: Path, act: Callable[[int], None], steps: int = 50, **options: object) -> holdfast.Run:
    """Each step takes ten pretended seconds, so that every boundary is a heartbeat."""
    clock = FakeClock()
    with a_run(folder, clock, **options) as run:
        for number in run.steps(steps):
            act(number)
            clock.advance(10)
            run.end_step()
            # Through the same queue as the look for the note: what was looked for is now seen.
            run.save_now().wait()
    return run


def test_a_running_training_saves_and_ends_with_the_code_that_nobody_restarts(
    tmp_path: Path, holdfast_command: Command
) -> None:
    def halt(number: int) -> None:
        if number == 5:
            answer = holdfast_command("halt", tmp_path / "run", "--reason", "wrong data")
            assert (answer.code, "wrong data" in answer.out) == (0, True)

    with pytest.raises(SystemExit) as ended:
        train(tmp_path / "run", halt)
    assert ended.value.code == DO_NOT_RESTART
    steps = [one.step for one in committed(CheckpointStore(tmp_path / "run"))]
    assert 6 <= steps[0] <= 7
    last = [event for event in read_events(str(tmp_path / "run")) if isinstance(event, RunEnded)][-1]
    assert (last.how, last.step) == ("stopped", steps[0])
    assert last.why.startswith("halted by ")
    assert last.why.endswith("wrong data")


def test_the_note_is_looked_for_at_heartbeats_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr("holdfast.engine.halting.read_halt", lambda folder: looks.append(folder))
    clock = FakeClock()
    with a_run(tmp_path / "run", clock) as run:
        for _ in run.steps(100):
            clock.advance(0.1)
            run.end_step()
    assert 2 <= len(looks) <= 3, "once at the start, then every 5 s of 10"


def test_none_starts_before_it_is_cleared(
    tmp_path: Path, holdfast_command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path / "run", lambda _: None, steps=2)
    holdfast_command("halt", tmp_path / "run", "--reason", "looking at the losses")
    with caplog.at_level(logging.ERROR), pytest.raises(SystemExit) as ended:
        a_run(tmp_path / "run").__enter__()
    assert ended.value.code == DO_NOT_RESTART
    assert "looking at the losses" in caplog.text
    assert "holdfast halt --clear" in caplog.text
    assert holdfast_command("halt", tmp_path / "run", "--clear").out.endswith("may run again\n")
    assert holdfast_command("halt", tmp_path / "run", "--clear").out.endswith("was not halted\n")
    assert train(tmp_path / "run", lambda _: None, steps=3).step == 3


def test_a_loop_that_returns_when_stopped_returns(tmp_path: Path, holdfast_command: Command) -> None:
    def halt(number: int) -> None:
        if number == 3:
            holdfast_command("halt", tmp_path / "run")

    run = train(tmp_path / "run", halt, on_stop="return")
    assert 4 <= run.step <= 5


def test_a_torn_note_halts_too(tmp_path: Path) -> None:
    for text in (b"", b"half a record", os.urandom(100_000)):
        (tmp_path / FILE).write_bytes(text)
        assert read_halt(tmp_path) == HaltNote()
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).symlink_to("/nowhere")
    assert read_halt(tmp_path) == HaltNote()
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    assert read_halt(tmp_path) == HaltNote()


def test_a_newer_note_replaces_an_older_one_and_leaves_nothing_else(tmp_path: Path) -> None:
    write_halt(tmp_path, HaltNote("first", "a@b", 1.0))
    write_halt(tmp_path, HaltNote("second", "a@b", 2.0))
    assert read_halt(tmp_path) == HaltNote("second", "a@b", 2.0)
    assert os.listdir(tmp_path) == [FILE]


def test_json_and_a_folder_that_is_no_run(tmp_path: Path, holdfast_command: Command) -> None:
    assert holdfast_command("halt", tmp_path).code == 1
    train(tmp_path / "run", lambda _: None, steps=1)
    said = holdfast_command("halt", tmp_path / "run", "--reason", "x", "--json").json
    assert (said["halted"], said["reason"]) == (True, "x")
    assert holdfast_command("halt", tmp_path / "run", "--clear", "--json").json["was_halted"] is True


SUPERVISED = """
import sys, torch, holdfast
with holdfast.Run(sys.argv[1], every="100000 steps", model=torch.nn.Linear(2, 2)) as run:
    for _ in run.steps(10**9):
        run.end_step()
"""


def test_a_supervisor_passes_it_on_and_does_not_restart(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SUPERVISED)
    folder = tmp_path / "run"
    with a_run(folder):
        pass
    write_halt(folder, HaltNote("enough", "me", 0.0))
    command = [
        sys.executable,
        "-m",
        "holdfast.cli.main",
        "run",
        "--",
        sys.executable,
        str(script),
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == DO_NOT_RESTART, done.stderr
    assert "enough" in done.stderr
    # With --run, the supervisor knows it too, and how to go on.
    command[4:4] = ["--run", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == DO_NOT_RESTART, done.stderr
    assert f"exit code 78: halted by me: enough; `holdfast halt --clear {folder}` lets it" in done.stderr
