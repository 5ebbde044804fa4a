"""The limits that the source keeps. They only go down: lower a limit when you made something smaller."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from figures import import_cycles

# What the house is to be: 33,000 lines, 220 files, 8 and 15 files a folder, 35 and 45 files, 0 of the rest.
LIMITS = {
    "lines": 52_800,
    "files": 424,
    "files_per_folder_median": 13,
    "files_per_folder_largest": 74,
    "large_modules": 5,
    "import_cycles": 2,
    "modules_in_cycles": 8,
    "file_names_used_twice": 8,
    "class_names_used_twice": 23,
    "isinstance_on_stores": 0,
    "branches_on_team_or_tiers": 91,
    "files_of_one_save": 93,
    "files_of_one_restore": 121,
}


@pytest.fixture(scope="module")
def counted() -> dict[str, Any]:
    # Its own process: the walk needs threads that nobody else started.
    script = Path(__file__).with_name("figures.py")
    done = subprocess.run([sys.executable, script, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


@pytest.mark.parametrize("name", LIMITS)
def test_the_source_keeps_its_limit(counted: dict[str, Any], name: str) -> None:
    assert counted[name] <= LIMITS[name], counted["names"].get(name)


def test_a_walk_passes_through_all_threads_of_a_save(counted: dict[str, Any]) -> None:
    walked = " ".join(counted["names"]["files_of_one_save"])
    for part in ("engine/run.py", "staging/", "stores/", "format/manifest"):
        assert part in walked, part


def test_a_cycle_through_a_late_import_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("figures.SOURCE", Path("/src/holdfast"))
    texts = {
        "/src/holdfast/a.py": "from holdfast.b import x",
        "/src/holdfast/b.py": "def late():\n    from holdfast import c",
        "/src/holdfast/c.py": "if TYPE_CHECKING:\n    from holdfast.a import y",
        "/src/holdfast/d.py": "import holdfast.a",
    }
    trees = {Path(path): ast.parse(text) for path, text in texts.items()}
    assert import_cycles(trees) == [["holdfast.a", "holdfast.b", "holdfast.c"]]
