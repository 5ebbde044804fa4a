"""Text for people is harmless, and fits."""

import io
import math

import pytest

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.read import read_files
from holdfast.cli.read_only_store import ReadOnlyStore, WatchedStore
from holdfast.cli.render import ProgressBar, age, clean, lines_of, plain, plural, shorten, show, when
from holdfast.cli.result import FactList, Result, Table, of_checked
from holdfast.errors import InternalError
from holdfast.stores.store import CheckpointStore
from holdfast.testing.fake_clock import FakeClock


@pytest.mark.parametrize(
    ("hostile", "harmless"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;window title\x07text", "text"),
        ("\x1b]8;;http://evil\x1b\\link", "link"),
        ("\x9b2Jcleared", "cleared"),
        ("\x1bPdevice control\x1b\\after", "after"),
        ("a\x00b\x7fc", "a?b?c"),
        ("\u202egnp.exe", "?gnp.exe"),
        ("zero\u200bwidth", "zero?width"),
        ("two\nlines", "two lines"),
        ("back\rover", "back?over"),
        ("half \ud800 pair", "half ? pair"),
        ("naïve × 3 µs", "naïve × 3 µs"),
        ("unfinished \x1b[", "unfinished "),
    ],
)
def test_clean_leaves_nothing_that_steers(hostile, harmless):
    assert clean(hostile) == harmless


def test_long_text_is_cut_with_a_mark():
    assert shorten("abcdef", 4) == "abc…"
    assert clean("abcdef", 6) == "abcdef"


def test_a_table_never_exceeds_the_terminal_and_is_never_cut_in_a_pipe(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "50")
    result = Result(text=[Table(["n", "text"], [["1", "x" * 100], ["20", "y"]], left=(1,))])
    show(result, as_json=False)
    piped = capsys.readouterr().out.splitlines()
    assert piped[1] == " 1  " + "x" * 100
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    show(result, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == 50
    assert lines[2] == "20  y"


@pytest.mark.parametrize(
    "block",
    ["\x1b[31mred", FactList([("name", "\x1b[31mred")]), Table(["\x1b[31mred"], [["\x1b]0;title\x07"]])],
)
def test_whatever_a_verb_returns_is_cleaned_before_it_is_printed(block):
    assert "\x1b" not in "".join(lines_of(block))
    assert "red" in "".join(lines_of(block))


def test_times_that_are_no_times_are_shown_as_they_stand():
    assert when("yesterday\x1b[31m") == "yesterday"
    assert age("yesterday", 0.0) is None


def test_a_time_ahead_of_our_clock_has_no_age():
    assert age("2026-01-01T00:00:00+00:00", 0.0) is None
    assert age("1970-01-01T00:00:00+00:00", 90.0) == "1 min 30 s ago"


def test_plurals():
    assert [plural(1, "pass"), plural(2, "pass"), plural(3, "batch"), plural(0, "step")] == [
        "1 pass", "2 passes", "3 batches", "0 steps",
    ]  # fmt: skip


def test_json_holds_no_nan():
    assert plain({"a": math.nan, "b": [math.inf, -math.inf, 1.5]}) == {"a": "nan", "b": ["inf", "-inf", 1.5]}


@pytest.mark.parametrize(("verdicts", "code"), [([True, True], 0), ([True, False], 3), ([False], 4), ([], 4)])
def test_exit_codes_follow_from_what_is_whole(verdicts, code):
    assert of_checked(verdicts) == code


def test_reads_are_counted_whoever_reads(finished_run):
    store = CheckpointStore(finished_run)
    found = committed(store)[0]
    told: list[int] = []
    read_files(WatchedStore(store, told.append), found)
    assert found.manifest is not None
    assert sum(told) == found.manifest.total_bytes


def test_a_store_that_was_opened_to_read_refuses_to_write(finished_run):
    name = CheckpointStore(finished_run).names()[0]
    for verb in (ReadOnlyStore.retire, ReadOnlyStore.abandon):
        with pytest.raises(InternalError, match="only to read"):
            verb(ReadOnlyStore(CheckpointStore(finished_run)), name)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_is_silent_where_nobody_watches():
    stream = io.StringIO()
    with ProgressBar("copying", 100, stream=stream, clock=FakeClock()) as bar:
        bar.add(100)
    assert stream.getvalue() == ""


def test_the_bar_shows_share_speed_and_rest_and_removes_itself():
    stream, clock = Terminal(), FakeClock()
    with ProgressBar("copying", 100_000_000, stream=stream, clock=clock) as bar:
        clock.advance(1.0)
        bar.add(25_000_000)
        shown = stream.getvalue()
    assert " 25%" in shown
    assert "25 MB/s" in shown
    assert "3 s left" in shown
    assert stream.getvalue().endswith("\r\x1b[2K")
