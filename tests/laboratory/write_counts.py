"""Writes what the laboratory counted into docs/guarantees.md; `make torture` calls it."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
BEGIN, END = "<!-- counts: written by `make torture` -->", "<!-- end of counts -->"


def table(notes: list[dict[str, Any]]) -> str:
    sums: dict[tuple[str, str], list[int]] = {}
    for note in notes:
        entry = sums.setdefault((note["tried"], note["looked_for"]), [0, 0])
        entry[0] += note["count"]
        entry[1] += note["found"]
    rows = [
        f"| {count:,} {tried} | {found:,} | {looked_for} |"
        for (tried, looked_for), (count, found) in sums.items()
    ]
    return "\n".join(["| tried | found | what was looked for |", "|---|---|---|", *rows])


def peers_table(note: dict[str, Any]) -> str:
    kinds = list(next(iter(note["peers"].values())))
    lines = [
        "What others lose in the same laboratory: acknowledged state that is gone after a kill or a full",
        "disk, and damage that loads without a word.",
        "",
        f"| of {note['trials']} trials each | {' | '.join(kinds)} |",
        "|---" * (len(kinds) + 1) + "|",
    ]
    for peer, row in note["peers"].items():
        lines.append(f"| {peer} | {' | '.join(str(row[kind]) for kind in kinds)} |")
    return "\n".join(lines)


def said_by() -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    day = datetime.datetime.now(datetime.UTC).date()
    machine = f"{os.cpu_count()} cores, Linux {os.uname().release.partition('-')[0]}"
    return f"`make torture`, {day}, commit {commit or 'unknown'}, {machine}"


def write(counts: Path, page: Path = PAGE) -> None:
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    notes = [json.loads(line) for line in counts.read_text().splitlines()]
    parts = [f"{said_by()}:", table([note for note in notes if "tried" in note])]
    parts += [peers_table(note) for note in notes if "peers" in note][-1:]
    page.write_text(f"{before}{BEGIN}\n" + "\n\n".join(parts) + f"\n{END}{after}")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
