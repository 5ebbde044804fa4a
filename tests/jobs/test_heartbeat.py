"""The file through which a training tells its supervisor that it lives."""

import os
from pathlib import Path

from holdfast.jobs.heartbeat import RECORD_BYTES, HeartbeatWriter, read_beat


def writer(tmp_path: Path) -> tuple[HeartbeatWriter, str]:
    path = tmp_path / "beat"
    path.touch()
    return HeartbeatWriter(str(path), str(tmp_path / "run")), str(path)


def test_a_beat_arrives_and_every_one_differs(tmp_path: Path) -> None:
    beats, path = writer(tmp_path)
    assert read_beat(path) is None
    beats.say(3, "training")
    first = read_beat(path)
    beats.say(3, "training")
    second = read_beat(path)
    assert first is not None
    assert second is not None
    assert (first.step, first.phase, first.run) == (3, "training", str(tmp_path / "run"))
    assert first != second
    beats.close()


def test_at_most_one_write_a_second(tmp_path: Path) -> None:
    beats, path = writer(tmp_path)
    for tick in range(30):
        beats.beat(10 + tick / 10, tick)
    last = read_beat(path)
    assert last is not None
    assert (last.count, last.step) == (3, 20)
    beats.close()


def test_a_shorter_record_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    beats, path = writer(tmp_path)
    beats.say(10**9, "stopped", "x" * 400)
    beats.say(1, "training")
    assert read_beat(path) is not None
    assert os.path.getsize(path) == RECORD_BYTES
    beats.close()


def test_reasons_of_any_length_and_alphabet_fit(tmp_path: Path) -> None:
    beats, path = writer(tmp_path)
    beats.say(1, "stopped", "\U0001f4a5" * 5000)
    beat = read_beat(path)
    assert beat is not None
    assert beat.phase == "stopped"
    beats.close()


def test_nobody_watching_costs_nothing_and_fails_nothing(tmp_path: Path) -> None:
    for path in (None, "", str(tmp_path / "missing" / "beat")):
        beats = HeartbeatWriter(path, "run")
        assert not beats.is_watched
        beats.beat(0.0, 1)
        beats.say(1, "finished")
        beats.close()


def test_a_forked_child_stays_silent(tmp_path: Path) -> None:
    beats, path = writer(tmp_path)
    beats.say(5, "training")
    before = read_beat(path)
    child = os.fork()
    if child == 0:
        beats.say(99, "failed")
        os._exit(0)
    os.waitpid(child, 0)
    assert read_beat(path) == before
    beats.close()


def test_a_damaged_record_is_no_beat(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    for text in ("", "{", "[]", "null", '{"count":1}', '{"count":1,"pid":1,"run":"r","step":1,"phase":"x"}'):
        path.write_text(text)
        assert read_beat(str(path)) is None
