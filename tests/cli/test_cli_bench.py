"""`holdfast bench` measures, cleans up after itself, and draws the right conclusion."""

import pytest

from holdfast.cli.trials.bench_cmd import affordable_size, interval
from holdfast.errors import SetupError


def test_bench_measures_and_leaves_nothing(holdfast_command, tmp_path):
    answer = holdfast_command("bench", tmp_path, "--size", "6MB", "--seconds", "1", "--json")
    assert answer.code == 0
    said = answer.json
    assert all(said["limits"][name] > 0 for name in ("memory_copy", "digest", "write_and_fsync", "read"))
    for way in ("holdfast", "torch_save"):
        assert said[way]["stall_seconds"] > 0
        assert said[way]["training_seconds"] >= said[way]["stall_seconds"]
        assert said[way]["restore_seconds"] > 0
    assert said["state_bytes"] == pytest.approx(6e6, rel=0.3)
    assert [one["budget"] for one in said["intervals"]] == [0.01, 0.03, 0.05]
    assert list(tmp_path.iterdir()) == []


def test_bench_of_a_missing_folder_is_an_error(holdfast_command, tmp_path):
    answer = holdfast_command("bench", tmp_path / "missing")
    assert answer.code == 1
    assert "there is no folder" in answer.err


@pytest.mark.parametrize("option", [("--size", "much"), ("--seconds", "soon"), ("--size", "1kB")])
def test_bench_refuses_what_it_cannot_read(holdfast_command, tmp_path, option):
    assert holdfast_command("bench", tmp_path, *option).code in (1, 2)
    assert list(tmp_path.iterdir()) == []


def test_a_budget_gives_an_interval_that_is_never_shorter_than_a_save():
    assert interval(0.03, 0.5, 0.03) == pytest.approx(1.0)
    assert interval(0.001, 0.5, 0.05) == 0.5


def test_the_size_shrinks_to_what_memory_and_disk_hold():
    gb = 10**9
    assert affordable_size(gb, 100 * gb, 100 * gb) == gb
    assert affordable_size(gb, 3 * gb, 100 * gb) == gb // 2
    assert affordable_size(gb, 100 * gb, 3 * gb) == gb // 2
    with pytest.raises(SetupError, match="cannot measure"):
        affordable_size(gb, 100 * gb, 10**6)
