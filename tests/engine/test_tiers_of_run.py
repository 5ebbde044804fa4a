"""Run(tiers=...): a killed trainer goes on from memory, copies go outward, a damaged copy is no loss."""

from __future__ import annotations

import glob
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast
from holdfast.checkpoints.find import committed
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.words import Tier

TRAINER = Path(__file__).with_name("trainer_with_tiers.py")


def train(run: Path, tiers: list[str] | None, die_at: int = -1, *before: str) -> list[str]:
    words = "" if tiers is None else json.dumps(tiers)
    command = [*before, sys.executable, str(TRAINER), str(run), words, str(die_at)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if die_at < 0:
        assert done.returncode == 0, done.stderr
    elif not before:
        assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout.splitlines()


def in_memory(run: Path) -> list[str]:
    return glob.glob(f"/dev/shm/holdfast-{os.getuid()}/{CheckpointStore(run).uuid}*/slot-*/*")


def steps(folder: Path) -> list[int]:
    return sorted(found.step for found in committed(CheckpointStore(folder)))


def test_killed_on_the_way_to_the_disk_it_goes_on_from_memory(tmp_path: Path) -> None:
    calm = train(tmp_path / "calm", ["memory", "run"])
    train(tmp_path / "run", ["memory", "run"], 7)
    assert steps(tmp_path / "run")[-1] == 6
    end = train(tmp_path / "run", ["memory", "run"])
    assert json.loads(end[0]) == [7, "memory"]
    assert end[1] == calm[1]
    assert in_memory(tmp_path / "run") == [], "a run that is done gives its memory back"


def test_the_supervisor_saves_what_a_dead_trainer_left_in_memory(tmp_path: Path) -> None:
    run = tmp_path / "run"
    holdfast_command = str(Path(sys.executable).with_name("holdfast"))
    keeper = (holdfast_command, "run", "--restarts", "0", "--")
    train(run, None, 7, *keeper)
    assert steps(run)[-1] == 7, "memory is the default under a supervisor, which commits what it finds there"
    assert in_memory(run) == []
    assert json.loads(train(run, None)[0])[0] == 7


class Loop:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(8, 8)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def run(self, path: Path, count: int, **words: Any) -> holdfast.Run:
        with holdfast.Run(
            path, every="1000 steps", model=self.model, optimizer=self.optimizer, **words
        ) as run:
            for _ in run.steps(count):
                self.model(torch.randn(2, 8)).sum().backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                run.end_step()
                run.save_now().wait()
        return run


def test_every_third_and_the_last_go_outward(tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    Loop().run(tmp_path / "run", 10, keep=20, tiers=["run", Tier(str(outer), flush_every=3, keep=20)])
    assert steps(tmp_path / "run") == list(range(1, 11))
    assert steps(outer) == [3, 6, 9, 10]


def test_memory_takes_every_save_and_the_disk_some(tmp_path: Path) -> None:
    Loop().run(tmp_path / "run", 10, keep=20, tiers=["memory", "run every 4"])
    assert steps(tmp_path / "run") == [4, 8, 10]
    assert in_memory(tmp_path / "run") == []


def test_a_copy_that_is_damaged_is_read_from_the_next_tier(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, outer = tmp_path / "run", tmp_path / "outer"
    before = Loop()
    before.run(first, 3, tiers=["run", str(outer)])
    newest = max((first / "ckpt").iterdir())
    for file in newest.glob("*.safetensors"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.chmod(0o644)
        file.write_bytes(data)
    after = Loop()
    run = after.run(first, 3, tiers=["run", str(outer)])
    assert run.resumed is not None
    assert (run.resumed.step, run.resumed.tier) == (3, str(outer))
    assert torch.equal(before.model.weight, after.model.weight)
    assert "cannot be used" in caplog.text


def test_tiers_of_an_earlier_attempt_are_found_without_being_named(tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    Loop().run(tmp_path / "run", 3, tiers=[str(outer)])
    assert steps(tmp_path / "run") == []
    run = Loop().run(tmp_path / "run", 4)
    assert run.resumed is not None
    assert run.resumed.step == 3
    assert steps(tmp_path / "run") == [4]


def test_a_run_whose_folder_was_lost_goes_on_from_an_outer_tier(tmp_path: Path) -> None:
    home, outer = tmp_path / "run", tmp_path / "outer"
    before = Loop()
    before.run(home, 3, tiers=["run", str(outer)])
    Loop().run(home, 3, tiers=["run", str(outer)])  # a second attempt: its epoch must not come back
    uuid = CheckpointStore(home).uuid
    shutil.rmtree(home)
    after = Loop()
    run = after.run(home, 5, tiers=["run", str(outer)])
    assert run.resumed is not None
    assert (run.resumed.step, run.resumed.tier) == (3, str(outer))
    assert CheckpointStore(home).uuid == uuid
    again = Loop().run(home, 5, tiers=["run", str(outer)])
    assert again.resumed is not None
    assert again.resumed.step == 5, "what was saved after the loss is the newest everywhere"


def test_tiers_of_two_different_runs_are_never_taken_for_one(tmp_path: Path) -> None:
    for name in ("one", "other"):
        Loop().run(tmp_path / name, 1, tiers=["run", str(tmp_path / f"outer-{name}")])
        shutil.rmtree(tmp_path / name)
    with pytest.raises(holdfast.SetupError, match="different runs"):
        Loop().run(
            tmp_path / "one", 1, tiers=["run", *(str(tmp_path / f"outer-{n}") for n in ("one", "other"))]
        )


def test_a_word_that_is_no_tier_is_an_error_when_it_is_given(tmp_path: Path) -> None:
    with pytest.raises(holdfast.SetupError, match="xor:0"):
        holdfast.Run(tmp_path / "run", tiers=["/a", "xor:0"], model=torch.nn.Linear(1, 1))
    with pytest.raises(holdfast.SetupError, match="several nodes"):
        Loop().run(tmp_path / "run", 1, tiers=["/a", "partner"])
