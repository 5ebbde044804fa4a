"""What a supervisor hears of a real training: signs of life, where it continued, and how it ended."""

import os
import signal
from pathlib import Path

import pytest
from small_training import train

import holdfast
from holdfast.jobs.heartbeat import VARIABLE, Beat, read_beat


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "heartbeat"
    path.touch()
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def last(path: Path) -> Beat:
    beat = read_beat(str(path))
    assert beat is not None
    return beat


def test_a_training_tells_where_it_is_and_how_it_ended(tmp_path: Path, heard: Path) -> None:
    during: list[Beat] = []

    def at(place: str) -> None:
        if place == "boundary" and not during:
            during.append(last(heard))
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit):
        train(tmp_path / "run", at)
    assert (during[0].phase, during[0].run, during[0].resumed_from) == (
        "training",
        str(tmp_path / "run"),
        None,
    )
    assert (last(heard).phase, last(heard).why, last(heard).step) == ("stopped", "SIGTERM", 1)

    first = holdfast.checkpoints(tmp_path / "run")[0].name
    train(tmp_path / "run")
    assert (last(heard).phase, last(heard).resumed_from) == ("finished", str(first))


def test_a_crash_is_told_too(tmp_path: Path, heard: Path) -> None:
    def at(place: str) -> None:
        if place == "backward":
            raise RuntimeError("a bug of the script")

    with pytest.raises(RuntimeError):
        train(tmp_path / "run", at)
    assert last(heard).phase == "failed"


def test_validation_is_a_sign_of_life(tmp_path: Path, heard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.jobs.heartbeat.SECONDS_BETWEEN", 0.0)
    counts: list[int] = []

    def at(place: str) -> None:
        if place == "validation":
            counts.append(last(heard).count)

    train(tmp_path / "run", at, epochs=1)
    assert len(counts) == 4
    assert len(set(counts)) == 4
