"""Whatever the pages and the docstrings name is there: modules, tests, benchmarks, packages, results."""

from __future__ import annotations

import re
import shutil
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md"))]
# Written in backticks, with a folder in front: `ranks/ballot.py`, `tests/kill`, `benchmarks/stall.py`.
NAMED = re.compile(r"`(?:src/holdfast/)?([a-z_]+/[A-Za-z0-9_./]*[A-Za-z0-9_])`")
FOLDERS = {path.name for path in chain(SOURCE.iterdir(), ROOT.iterdir()) if path.is_dir()}
MADE_BY_RUNS = {"runs"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    for name in NAMED.findall(page.read_text()):
        if name.split("/")[0] in FOLDERS - MADE_BY_RUNS:
            assert (ROOT / name).exists() or (SOURCE / name).exists(), f"{page.name} names {name}"


def test_the_table_of_rows_names_every_package_and_no_other() -> None:
    table = re.findall(r"^\| [0-9–] \| ([^|]+) \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    there = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.name in FOLDERS}
    named = re.findall(r"`([a-z_]+)`", " ".join(table))
    assert sorted(named) == sorted(there - {"__init__", "__pycache__"})


def test_every_promise_names_the_tests_that_prove_it() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    rows = re.findall(r"^\| (G\d+) \|.*\| ([^|]+) \|$", page, re.MULTILINE)
    assert [number for number, _ in rows] == [f"G{n}" for n in range(1, len(rows) + 1)]
    for number, proven_by in rows:
        assert re.search(r"`tests/[a-z_/.]+`", proven_by), f"{number} names no test"


def test_the_page_of_results_says_what_the_recorded_json_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    results = shutil.copytree(ROOT / "benchmarks" / "results", tmp_path / "results")
    page = (results / "README.md").read_text()
    written = import_module("summary").write_summary(results)
    assert written.read_text() == page, "python benchmarks/summary.py writes it anew"
