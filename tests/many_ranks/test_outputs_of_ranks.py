"""Outputs of several ranks: everybody's files or nobody's, and the same generation for all. A halt, too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.jobs.exit_codes import DO_NOT_RESTART

SCRIPT = Path(__file__).with_name("outputs_at_work.py")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All scenarios, from one process that has torch imported."""
    folder = tmp_path_factory.mktemp("outputs")
    done = subprocess.run([sys.executable, str(SCRIPT), folder], capture_output=True, text=True, timeout=300)
    errors = "\n".join(path.read_text() for path in sorted(folder.rglob("error-*.txt")))
    assert done.returncode == 0, done.stderr[-2000:] + errors
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert not errors, errors
    return answer


def said(played: dict[str, Any], what: str) -> list[Any]:
    return [rank[what] for rank in played["life"]["told"]]


def test_every_rank_gets_its_own_files_back(played: dict[str, Any]) -> None:
    assert said(played, "none yet") == [None] * 3
    assert said(played, "restored") == [{"part/mine": "rank 0 step 5"}, {}, {"part/mine": "rank 2 step 5"}]
    assert said(played, "of another") == [{"part/mine": "rank 2 step 5"}] * 3


def test_all_ranks_know_it_by_one_name(played: dict[str, Any]) -> None:
    for what in ("first", "second", "third"):
        assert len(set(said(played, what))) == 1
        assert said(played, what)[0].startswith("e00000001-s")


def test_an_exception_on_one_rank_means_that_nobodys_files_are_kept(played: dict[str, Any]) -> None:
    first, second, third = said(played, "exception")
    assert second == "ZeroDivisionError: rank 1 stumbles"
    for other in (first, third):
        assert other.startswith("SaveError")
        assert "rank 1 stumbles" in other
    assert played["life"]["kept"] == [5, 2]


@pytest.mark.parametrize("who", [0, 2])
def test_what_one_rank_calls_invalid_nobody_keeps(played: dict[str, Any], who: int) -> None:
    for answer in said(played, f"invalid on {who}"):
        assert answer.startswith("SaveError")
        assert f"rank {who} does not like it" in answer


def test_damage_to_one_ranks_file_means_the_older_output_for_all(played: dict[str, Any]) -> None:
    assert played["life"]["damaged"] == [{"part/mine": "rank 0 step 2"}, {}, {"part/mine": "rank 2 step 2"}]


def test_another_number_of_ranks_must_say_whose_files_it_wants(played: dict[str, Any]) -> None:
    # Both look at every byte between them: what is damaged is passed over by all, whoever asked for it.
    assert played["life"]["fewer"] == [
        ["IncompatibleState", {"part/mine": "rank 2 step 2"}],
        ["IncompatibleState", {}],
    ]


def test_no_scratch_is_left_behind(played: dict[str, Any]) -> None:
    assert played["life"]["left"] == []


def test_a_rank_killed_in_its_block_means_no_output_and_no_hang(played: dict[str, Any]) -> None:
    found = played["killed"]
    for saves in found["said"]:
        assert saves[0].startswith("e00000001-s")
        assert saves[1].startswith("SaveError")
    assert found["kept"] == [1]
    for rank, (before, after) in enumerate(found["again"]):
        assert before == {"mine": str(rank)}
        assert after.startswith("e00000002-s000000000003-")


def test_a_halt_ends_all_ranks_at_one_step_with_a_checkpoint(played: dict[str, Any]) -> None:
    halted = played["halt"]["halted"]
    assert [rank["exit"] for rank in halted] == [DO_NOT_RESTART] * 3
    assert [rank["step"] for rank in halted] == [played["halt"]["newest"]] * 3
    assert played["halt"]["again"] == [{"exit": DO_NOT_RESTART}] * 3


def test_save_due_tells_all_ranks_the_same(played: dict[str, Any]) -> None:
    answers = [rank["due"] for rank in played["halt"]["halted"]]
    assert answers[0] == answers[1] == answers[2]
    assert True in answers[0]
    assert False in answers[0]


def test_the_best_by_the_number_of_rank_0_is_saved_by_all_ranks(played: dict[str, Any]) -> None:
    # 2 after step 1, 1 after step 2, 0 after step 3; then it gets worse, and the end of the run is saved.
    assert played["best"]["saved"] == [[3, 0.0], [6, 3.0]]
