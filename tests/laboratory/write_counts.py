"""Writes what the laboratory counted into docs/guarantees.md; `make torture` calls it."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
BEGIN, END = "<!-- counts: written by `make torture` -->", "<!-- end of counts -->"


def table(lines: list[str]) -> str:
    sums: dict[tuple[str, str], list[int]] = {}
    for line in lines:
        note = json.loads(line)
        entry = sums.setdefault((note["tried"], note["looked_for"]), [0, 0])
        entry[0] += note["count"]
        entry[1] += note["found"]
    rows = [
        f"| {count:,} {tried} | {found:,} | {looked_for} |"
        for (tried, looked_for), (count, found) in sums.items()
    ]
    return "\n".join(["| tried | found | what was looked for |", "|---|---|---|", *rows])


def said_by() -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    day = datetime.datetime.now(datetime.UTC).date()
    machine = f"{os.cpu_count()} cores, Linux {os.uname().release}"
    return f"`make torture`, {day}, commit {commit or 'unknown'}, {machine}"


def write(counts: Path, page: Path = PAGE) -> None:
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = counts.read_text().splitlines()
    page.write_text(f"{before}{BEGIN}\n{said_by()}:\n\n{table(lines)}\n{END}{after}")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
