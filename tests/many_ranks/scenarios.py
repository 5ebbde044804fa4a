"""Runs ranks_at_work.py and reads what it found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("ranks_at_work.py")
SAMPLES = 46


def play(scenario: str, folder: Path, *words: object, script: Path = SCRIPT) -> dict[str, Any]:
    command = [sys.executable, str(script), scenario, str(folder), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580)
    errors = "\n".join(path.read_text() for path in sorted(folder.rglob("error-*.txt")))
    assert done.returncode == 0, done.stderr[-2000:] + errors
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    answer["errors"] = errors
    answer["stderr"] = done.stderr
    return answer
