"""A copied folder is a run of its own, a moved one is the same run."""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast
from holdfast.cli.read_only_store import DryRun
from holdfast.errors import SetupError
from holdfast.stores.identity import COPIED, is_marked_as_copy
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.lost_home import Known, known_elsewhere
from holdfast.tiers.words import Tier


def claimed(path: Path) -> str:
    with CheckpointStore(path) as store:
        store.claim()
        return store.uuid


@pytest.mark.parametrize("copy", [shutil.copy2, os.link], ids=["copy", "hard links"])
def test_a_copy_gets_an_identity_of_its_own_and_keeps_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, copy: Callable[[str, str], object]
) -> None:
    first = claimed(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=copy)
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        second = claimed(tmp_path / "b")
    assert second != first
    assert "is a copy of" in caplog.text
    caplog.clear()
    assert (claimed(tmp_path / "a"), claimed(tmp_path / "b")) == (first, second)
    assert caplog.text == ""


def test_a_copy_of_a_moved_run_is_noticed_as_well(tmp_path: Path) -> None:
    first = claimed(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "moved")
    assert claimed(tmp_path / "moved") == first
    shutil.copytree(tmp_path / "moved", tmp_path / "copy")
    assert claimed(tmp_path / "copy") != first
    assert claimed(tmp_path / "moved") == first


@pytest.mark.parametrize("how", ["moved", "by another name", "the original came back"])
def test_the_same_run_stays_the_same(tmp_path: Path, how: str) -> None:
    first = claimed(tmp_path / "a")
    if how == "moved":
        (tmp_path / "a").rename(tmp_path / "b")
    elif how == "by another name":
        (tmp_path / "b").symlink_to(tmp_path / "a")
        assert claimed(tmp_path / "b") == first
        assert claimed(tmp_path / "a") == first
    else:
        shutil.copytree(tmp_path / "a", tmp_path / "backup")
        shutil.rmtree(tmp_path / "a")
        shutil.copytree(tmp_path / "backup", tmp_path / "b")
        shutil.rmtree(tmp_path / "backup")
    assert claimed(tmp_path / "b") == first


def test_killed_while_it_became_its_own_it_does_not_take_the_other_ones_name(tmp_path: Path) -> None:
    first = claimed(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.copytree(tmp_path / "a", tmp_path / "tier")
    os.rename(tmp_path / "b" / "STORE.json", tmp_path / "b" / f"STORE.json.00{COPIED}")
    assert is_marked_as_copy(str(tmp_path / "b"))
    # A tier that holds the other run would give its name to a folder that was lost.
    assert known_elsewhere(str(tmp_path / "b"), [Tier(str(tmp_path / "tier"))]) == Known()
    assert claimed(tmp_path / "b") != first


def test_a_copied_run_goes_on_from_its_own_state_and_leaves_the_other_ones_tier_alone(
    tmp_path: Path,
) -> None:
    def train(folder: str, steps: int, **settings: object) -> int | None:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = holdfast.Run(tmp_path / folder, model=model, optimizer=optimizer, **settings)  # type: ignore[arg-type]
        with run:
            for _ in run.steps(steps):
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
                run.end_step()
        return run.resumed and run.resumed.step

    tiers = ["run", str(tmp_path / "outer")]
    assert train("a", 3, tiers=tiers) is None
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert train("a", 6, tiers=tiers) == 3
    with pytest.raises(SetupError, match=r"belongs to another run"):
        train("b", 9, tiers=tiers)
    assert train("b", 9, tiers=["run", str(tmp_path / "its-own")]) == 3
    assert train("b", 10) == 9
    # What was copied with it is pruned like what it saved itself, once two newer ones have been read back.
    assert train("b", 12, every="1 step") == 10
    assert [one.step for one in holdfast.checkpoints(tmp_path / "b")] == [12, 11]
    assert train("a", 7, tiers=tiers) == 6


def test_a_copied_run_gets_its_own_outputs_back_and_not_those_in_the_other_ones_tier(tmp_path: Path) -> None:
    def opened(folder: str, *tiers: str) -> holdfast.Run:
        return holdfast.Run(tmp_path / folder, tiers=["run", *tiers], model=nn.Linear(1, 1))

    def put(run: holdfast.Run, step: int) -> None:
        with run.output("x", step=step) as out:
            out.path("text").write_text(f"step {step}")

    with opened("a", str(tmp_path / "outer")) as run:
        put(run, 1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with opened("a", str(tmp_path / "outer")) as run:
        put(run, 2)
    with opened("b") as run:
        folder = run.restored_output("x")
        assert folder is not None
        assert (folder / "text").read_text() == "step 1"


def test_a_dry_run_of_pruning_says_of_a_copy_what_pruning_does(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "a")
    with store:
        store.claim()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    first = CheckpointStore(tmp_path / "a").uuid
    claimed(tmp_path / "b")
    copy = CheckpointStore(tmp_path / "b")
    assert copy.ancestors == (first,)
    assert DryRun(copy).ancestors == (first,)
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    claimed(tmp_path / "c")
    assert CheckpointStore(tmp_path / "c").ancestors == (first, copy.uuid)
