"""`holdfast demo` does what it says, and its picture is readable anywhere."""

import io
from contextlib import ExitStack
from dataclasses import replace

import pytest

from holdfast.cli.trials.demo_cmd import HEADING, Glyphs, Screen, lane_line, summary
from holdfast.cli.trials.demo_run import (
    KILLED,
    NONE,
    OURS,
    PLAIN,
    DemoResult,
    KillResult,
    Lane,
    TrainingProcess,
    WayResult,
)
from holdfast.errors import SetupError

WAYS = tuple(
    WayResult(
        way=way, seconds=seconds, saves=saves, stall_seconds=stall, fingerprint="ab" * 32, accuracy=0.97
    )
    for way, seconds, saves, stall in ((NONE, 8.0, 0, None), (PLAIN, 10.0, 28, 0.06), (OURS, 8.1, 28, 0.0012))
)
KILL = KillResult(
    killed_after_step=171, epoch=4, epoch_share=0.64, resumed_at_step=170, steps_redone=1,
    restore_seconds=0.05, fingerprint="ab" * 32,
)  # fmt: skip
RESULT = DemoResult(
    ways=WAYS, kill=KILL, samples=1500, parameters=4_358_154, state_bytes=52_300_000, epochs=6, steps=282,
    every=10, threads=1, torch="2.13.0", cores=2, load=0.1,
)  # fmt: skip


def test_the_whole_demo_ends_with_the_same_bits_after_a_real_kill(holdfast_command, tmp_path):
    answer = holdfast_command("demo", "--epochs", 1, "--folder", tmp_path / "demo", "--json")
    assert answer.code == 0
    said = answer.json
    assert said["identical"] is True
    assert len({way["fingerprint"] for way in said["ways"]} | {said["kill"]["fingerprint"]}) == 1
    kill = said["kill"]
    assert kill["resumed_at_step"] + kill["steps_redone"] == kill["killed_after_step"]
    assert 0 < kill["killed_after_step"] < said["steps"], "the kill must come in the middle"
    assert [way["way"] for way in said["ways"]] == [NONE, PLAIN, OURS]
    assert said["ways"][1]["saves"] == said["steps"] // said["every"] + 1
    assert said["state_bytes"] > 30_000_000
    # What it left is a run like any other.
    assert holdfast_command("verify", tmp_path / "demo" / "killed", "--deep").code == 0
    weights = holdfast_command(
        "diff", tmp_path / "demo" / "killed", "newest", "newest",
        "--other-run", tmp_path / "demo" / "holdfast", "--json",
    ).json  # fmt: skip
    assert weights["tensors"] == []


def test_different_weights_fail_loudly():
    other = replace(RESULT, kill=replace(KILL, fingerprint="cd" * 32))
    assert not other.is_identical
    assert "NOT the same" in "\n".join(summary(other, Glyphs("utf-8")))


def test_every_line_fits_80_columns():
    lanes = [
        Lane(NONE, 282, step=282, seconds=123.4, loss=0.001, is_done=True),
        Lane(PLAIN, 282, step=100, seconds=1.2, loss=2.345),
        Lane(KILLED, 282, step=282, is_dead=True),
        Lane("resumed", 282, first=170, step=171),
        Lane(OURS, 99999, step=99999, seconds=99999.9, loss=12345.678),
    ]
    for glyphs in (Glyphs("utf-8"), Glyphs("ascii")):
        lines = [*HEADING.splitlines(), *(lane_line(lane, glyphs) for lane in lanes)]
        lines += summary(replace(RESULT, load=99.0), glyphs)
        assert max(map(len, lines)) <= 80


def test_a_terminal_without_unicode_gets_a_picture_of_ascii():
    glyphs = Glyphs("ascii")
    text = lane_line(Lane(KILLED, 100, step=50, is_dead=True), glyphs) + "\n".join(summary(RESULT, glyphs))
    assert text.isascii()
    assert "yes: bit for bit the same" in text


def test_the_summary_tells_the_numbers_of_this_run():
    text = "\n".join(summary(RESULT, Glyphs("utf-8")))
    for fact in (
        "+25.0%",
        "60 ms",
        "1.2 ms (50 times less)",
        "1 step of 282 redone",
        "64% into epoch 4",
        "52.3 MB",
    ):
        assert fact in text, fact


def test_a_busy_machine_is_mentioned_and_an_idle_one_is_not():
    assert "noisy" not in "\n".join(summary(RESULT, Glyphs("utf-8")))
    assert "noisy" in "\n".join(summary(replace(RESULT, load=11.0), Glyphs("utf-8")))


def test_a_resumed_bar_begins_where_it_was_resumed():
    line = lane_line(Lane("resumed", 100, first=50, step=100), Glyphs("ascii"))
    assert "." * 17 + "#" * 17 in line


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Pipe(io.StringIO):
    encoding = "utf-8"


def test_a_pipe_gets_each_lane_once_and_no_escapes():
    stream = Pipe()
    screen = Screen(stream)
    lane = Lane(NONE, 10, step=5)
    screen.show({NONE: lane})
    assert stream.getvalue() == ""
    for _ in range(3):
        screen.show({NONE: replace(lane, step=10, is_done=True)})
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_is_redrawn_in_place(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    screen = Screen(stream)
    screen.show({NONE: Lane(NONE, 10), PLAIN: Lane(PLAIN, 10)})
    screen.show({NONE: Lane(NONE, 10, step=10, is_done=True), PLAIN: Lane(PLAIN, 10)})
    assert stream.getvalue().count("\x1b[2A") == 1
    assert "\x1b[3" not in stream.getvalue(), "NO_COLOR is respected"


def test_a_training_process_that_dies_is_explained(tmp_path):
    with ExitStack() as alive:
        process = TrainingProcess(tmp_path / "log", alive)
        process.kill()
        (tmp_path / "log").write_text("Traceback\nImportError: no such thing\n")
        with pytest.raises(SetupError, match="ended too early: ImportError: no such thing"):
            process.hear()
        with pytest.raises(SetupError, match="ended too early"):
            process.say(go=True)


def test_the_demo_never_works_in_a_folder_that_exists(holdfast_command, tmp_path):
    answer = holdfast_command("demo", "--folder", tmp_path)
    assert answer.code == 1
    assert "exists already" in answer.err
