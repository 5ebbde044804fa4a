"""Folders that every user of the machine can change are pointed out before anything in them is believed."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import StoreDenied
from holdfast.stores import ownership
from holdfast.stores.store import CheckpointStore

STRANGER = 4242


def claim(folder: Path) -> None:
    with CheckpointStore(folder) as store:
        store.claim()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    monkeypatch.setattr(ownership, "_said", set())
    return lambda: [record.getMessage() for record in caplog.records if "every user" in record.getMessage()]


@pytest.mark.parametrize("which", ["the run's folder", "its parent"])
def test_a_folder_that_everybody_can_change_is_said_once(
    tmp_path: Path, said: Callable[[], list[str]], which: str
) -> None:
    run = tmp_path / "shared" / "run"
    run.mkdir(parents=True)
    open_one = run if which == "the run's folder" else run.parent
    open_one.chmod(0o777)
    claim(run)
    claim(run)
    [line] = said()
    assert f"can change {open_one} (mode 777)" in line
    assert ("resumes from" if open_one == run else f"replace {run}") in line


def test_a_sticky_or_private_folder_is_not_spoken_of(tmp_path: Path, said: Callable[[], list[str]]) -> None:
    run = tmp_path / "shared" / "run"
    run.mkdir(parents=True)
    run.chmod(0o775)
    run.parent.chmod(0o1777)
    claim(run)
    assert said() == []


def test_whoever_is_alone_there_can_say_so(
    tmp_path: Path, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (run := tmp_path / "run").mkdir()
    run.chmod(0o777)
    monkeypatch.setenv("HOLDFAST_TRUST", "everybody")
    claim(run)
    assert said() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_what_another_user_made_in_an_open_folder_is_refused_sticky_or_not(tmp_path: Path) -> None:
    run = tmp_path / "shared" / "run"
    run.mkdir(parents=True)
    os.chown(run, STRANGER, STRANGER)
    for mode in (0o1777, 0o777):
        run.parent.chmod(mode)
        with pytest.raises(StoreDenied, match="everybody can make folders"):
            CheckpointStore(run)
