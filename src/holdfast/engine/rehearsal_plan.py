"""What a rehearsed process shall do, handed to it in a file that an environment variable names, and what it
recorded. The command writes plans and reads records; `Run` reads the plan and writes records."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

VARIABLE = "HOLDFAST_REHEARSAL"
Kill = Literal["", "behind a save", "at a save", "during a save"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`folder` stands in for the run's own. From boundary `save_from` on, at the first where a save is
    possible, one is made, and `kill` says when the process dies then; with `save_every` there are more. At
    `stop_at` the process ends with code 0, whatever the script still wants to do."""

    folder: str
    records: str
    stop_at: int
    save_every: int = 0
    save_from: int = 0
    kill: Kill = ""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


def plan_in(environment: Mapping[str, str]) -> Plan | None:
    path = environment.get(VARIABLE)
    if not path:
        return None
    return Plan(**json.loads(Path(path).read_text()))


class Records:
    """One line for each thing that happened, written at once: a killed process leaves all of them."""

    def __init__(self, folder: str, rank: int) -> None:
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"rank{rank}.jsonl")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, what: Mapping[str, Any]) -> None:
        os.write(self._file, (json.dumps(what) + "\n").encode())


def read_records(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """What each rank wrote down."""
    return {
        int(path.stem.removeprefix("rank")): [
            # The last line of a killed process may be torn.
            json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")
        ]
        for path in folder.glob("rank*.jsonl")
    }  # fmt: skip
