"""A real training process, really killed: the losses are those of the run that was left alone, to the bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.data.audit import audit_run

SCRIPT = Path(__file__).with_name("train_digits.py")
EPOCHS = 3


def train(folder: Path, workers: int, kill_after: int | None = None) -> dict[tuple[str, int], str]:
    """What the script said, by kind and number; killed with SIGKILL after that many losses."""
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(folder), str(EPOCHS), str(workers)]
    said: dict[tuple[str, int], str] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        losses = 0
        for line in process.stdout:
            kind, number, value = line.split()
            said[kind, int(number)] = value
            losses += kind == "step"
            if losses == kill_after:
                os.killpg(process.pid, signal.SIGKILL)
                process.stdout.close()
                break
        code = process.wait(timeout=120)
    assert code == (0 if kill_after is None else -signal.SIGKILL)
    return said


@pytest.mark.parametrize("workers", [2, pytest.param(0, marks=pytest.mark.torture)])
def test_losses_after_three_kills_are_those_of_the_uninterrupted_run(tmp_path: Path, workers: int) -> None:
    alone = train(tmp_path / "alone", workers)
    assert len(alone) == EPOCHS * 12 + EPOCHS
    chance = random.Random(workers)
    together: dict[tuple[str, int], str] = {}
    for attempt in range(4):
        kill_after = chance.randint(5, 11) if attempt < 3 else None
        for what, value in train(tmp_path / "killed", workers, kill_after).items():
            assert value == alone[what], f"{what} of attempt {attempt}"
            together[what] = value
    assert together == alone
    report = audit_run(tmp_path / "killed")
    assert report.ok, report.violations
    trained = [p for p in report.passes if p.feed == "train"]
    assert [(p.samples, p.finished, p.exactly_once) for p in trained] == [(384, True, True)] * EPOCHS
    assert report.attempts == 4
