"""SIGTERM to one rank of four: all of them stop at one step, with one commit, and go on from there."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenarios import play

from holdfast.jobs.exit_codes import PLEASE_RUN_AGAIN


@pytest.mark.parametrize("kind", ["fsdp"])
def test_all_ranks_stop_together_with_one_clean_commit(kind: str, tmp_path: Path) -> None:
    found = play("sigterm", tmp_path, kind, 5)
    assert [answer["exit"] for answer in found["stopped"]] == [PLEASE_RUN_AGAIN] * 4, found["errors"]
    assert len(found["steps"]) == 1
    for calm, end in zip(found["undisturbed"], found["done"], strict=True):
        assert calm is not None, found["errors"]
        assert end is not None, found["errors"]
        assert (end["whole"], end["own"], end["step"]) == (calm["whole"], calm["own"], calm["step"])
        rest = [line for line in calm["losses"] if line[0] >= found["steps"][0]]
        assert end["losses"] == rest
