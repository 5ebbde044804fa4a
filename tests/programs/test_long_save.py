"""A save that takes long is not taken for a hang; one that never ends is."""

import threading
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.jobs.heartbeat import HeartbeatWriter, read_beat
from holdfast.programs import attempt as long_save
from holdfast.programs.attempt import signs_of_life
from holdfast.testing.fake_clock import FakeClock


def watched(tmp_path: Path) -> tuple[Path, HeartbeatWriter]:
    path = tmp_path / "beats"
    path.touch()
    return path, HeartbeatWriter(str(path), str(tmp_path))


def test_there_are_beats_while_a_save_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, heartbeat = watched(tmp_path)
    monkeypatch.setattr(long_save, "SECONDS_BETWEEN", 0.01)
    with signs_of_life(heartbeat, SystemClock(), step=3, limit=60):
        # Until one has come; the limit is for a machine that is very busy.
        arrived = threading.Event()
        for _ in range(1000):
            if read_beat(str(path)) is not None:
                arrived.set()
                break
            threading.Event().wait(0.01)
        assert arrived.is_set()
    beat = read_beat(str(path))
    assert beat is not None
    assert beat.step == 3
    heartbeat.close()


def test_beyond_its_limit_a_save_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, heartbeat = watched(tmp_path)
    monkeypatch.setattr(long_save, "SECONDS_BETWEEN", 0.01)
    clock = FakeClock()
    with signs_of_life(heartbeat, clock, step=3, limit=0):
        for thread in threading.enumerate():
            if thread.name == "holdfast-heartbeat":
                # It ends by itself, though the save goes on.
                thread.join(20)
                assert not thread.is_alive()
    assert read_beat(str(path)) is None
    heartbeat.close()


def test_without_a_supervisor_no_thread_is_started(tmp_path: Path) -> None:
    with signs_of_life(HeartbeatWriter(None, str(tmp_path)), SystemClock(), step=1, limit=60):
        assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-heartbeat"]
