"""kill -9 of all ranks at random instants: the end is that of an undisturbed run, bit for bit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from scenarios import play

KILLS = 15 if os.environ.get("HOLDFAST_TORTURE") else 3


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_killed_again_and_again_it_ends_as_if_nothing_had_happened(kind: str, tmp_path: Path) -> None:
    found = play("killed", tmp_path, kind, KILLS, 20261116)
    assert found["killed"] >= KILLS // 2, "most kills must hit a training that still runs"
    for rank, (calm, end) in enumerate(zip(found["undisturbed"], found["done"], strict=True)):
        assert calm is not None, found["errors"]
        assert end is not None, found["errors"]
        assert end["whole"] == calm["whole"]
        assert end["own"] == calm["own"]
        expected = {str(step): [loss] for step, loss in calm["losses"]}
        assert found["history"][rank] == expected, "every attempt at a step must compute the same loss"
