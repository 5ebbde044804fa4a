"""`holdfast verify --all-tiers [--repair]` on real folders, with the documented answers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tier_samples import copy_to, flip, place, save

from holdfast.cli.main import main
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.tier_list import remember_tiers
from holdfast.tiers.words import parse_tiers


class Run:
    def __init__(self, folder: Path) -> None:
        self.path, self.far = folder / "run", folder / "far"
        with CheckpointStore(self.path) as home:
            home.claim()
            remember_tiers(self.path, parse_tiers(["run", str(self.far)]))
            with CheckpointStore(self.far, uuid=home.uuid) as far:
                far.claim()
                self.names = []
                for step in (1, 2):
                    self.names.append(str(save(home, step).name))
                    copy_to(far, home, self.names[-1])

    def file(self, folder: Path, step: int, file: str = "model.bin") -> Path:
        return place(CheckpointStore(folder), self.names[step - 1]) / file


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def ask(capsys: pytest.CaptureFixture[str], run: Run, *options: str) -> tuple[int, str]:
    code = main(["verify", str(run.path), *options])
    return code, capsys.readouterr().out


def test_whole_copies_answer_0_and_nothing_is_written(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(run.path.rglob("*")) + sorted(run.far.rglob("*"))
    code, out = ask(capsys, run, "--all-tiers", "--repair", "--json")
    assert code == 0
    said = json.loads(out)
    assert [tier["name"] for tier in said["tiers"]] == ["run", str(run.far)]
    assert all(tier["survives"] == ["process", "node", "job"] for tier in said["tiers"])
    assert [len(one["copies"]) for one in said["checkpoints"]] == [2, 2]
    assert all(copy["bytes_checked"] == 5300 for one in said["checkpoints"] for copy in one["copies"])
    assert sorted(run.path.rglob("*")) + sorted(run.far.rglob("*")) == before


def test_a_bad_copy_answers_3_until_it_is_repaired(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    good = run.file(run.far, 2).read_bytes()
    flip(run.file(run.far, 2), 50)
    run.file(run.path, 1, "state.bin").unlink()
    code, out = ask(capsys, run, "--all-tiers", "--deep")
    assert code == 3
    assert "is damaged in chunk 0" in out
    assert "is missing" in out
    code, out = ask(capsys, run, "--repair")
    assert code == 0
    assert "repaired: model.bin" in out
    assert run.file(run.far, 2).read_bytes() == good
    assert ask(capsys, run, "--all-tiers", "--deep")[0] == 0


def test_what_is_good_nowhere_is_lost_and_nothing_usable_answers_4(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (run.path, run.far):
        flip(run.file(folder, 2), 50)
    code, out = ask(capsys, run, "--repair")
    assert code == 3
    assert "LOST" in out
    assert "no good copy is left: model.bin: chunk 0 is good in no tier" in out
    for folder in (run.path, run.far):
        flip(run.file(folder, 1), 50)
    assert ask(capsys, run, "--all-tiers", "--deep")[0] == 4


def test_a_run_that_lives_is_not_repaired(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    flip(run.file(run.far, 2), 50)
    code = (
        "import sys\nfrom holdfast.stores.store import CheckpointStore\n"
        f"CheckpointStore({str(run.path)!r}).claim()\nprint('claimed', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "claimed\n"
        assert main(["verify", str(run.path), "--repair"]) == 1
        assert "is being written by" in capsys.readouterr().err
        trainer.communicate("", timeout=30)
    assert ask(capsys, run, "--repair")[0] == 0


def test_a_step_that_no_tier_has_is_an_error(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(capsys, run, "--all-tiers", "--step", "3")[0] == 1
    assert ask(capsys, run, "--all-tiers", "--step", "2")[0] == 0
    assert ask(capsys, run, "--all-tiers", "--data")[0] == 1
