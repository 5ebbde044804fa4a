"""Of each script one tracked thing after the other is left out: rehearsing finds what matters."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked_scripts import all_scripts

PROGRAM = Path(__file__).parent / "forked_leave_outs.py"


def judged(place: Path, seed: int, kills: int, wanted: list[str]) -> list[dict[str, Any]]:
    command = [sys.executable, str(PROGRAM), str(place), str(seed), str(kills), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20_000, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_what_is_left_out_is_found_and_named(work: Path, seed: int) -> None:
    wanted = ["dqn:target", "get_batch:line 38"]
    results = judged(work, seed, 0, wanted)
    assert [f"{r['script']}:{r['left_out']}" for r in results] == wanted
    for result in results:
        assert not result["exact"], result
        assert result["named"], result
        assert result["look_named"], result
        assert not result["touched"], "the run's own folder"


@pytest.mark.torture
def test_of_every_script_everything_that_matters_is_found(
    work: Path, seed: int, counted: Callable[[str, int, str, int], None]
) -> None:
    results = judged(work, seed, 8, all_scripts())
    complete = [r for r in results if not r["left_out"]]
    left_out = [r for r in results if r["left_out"]]
    assert len(complete) == len(all_scripts())
    said = [r for r in complete if not r["exact"] or r["causes"] or r["looked"]]
    counted("complete training scripts", len(complete), "findings where nothing is left out", len(said))
    assert said == []
    matters = [r for r in left_out if r["matters"]]
    assert len(matters) > 60, "the scripts say little"
    named, looked = sum(r["named"] for r in matters), sum(r["look_named"] for r in matters)
    tried = "things left out of training scripts that matter"
    counted(tried, len(matters), "not found by `holdfast rehearse`", sum(r["exact"] for r in matters))
    counted(tried, len(matters), "not named with its line by it", len(matters) - named)
    counted(tried, len(matters), "not named by the run's own look", len(matters) - looked)
    print(f"{len(left_out)} left out, {len(matters)} matter, rehearse names {named}, the look {looked}")
    assert named >= 0.9 * len(matters)
    assert looked >= 0.8 * len(matters)
    assert [r for r in matters if r["exact"]] == [], "rehearsing called them exact"
