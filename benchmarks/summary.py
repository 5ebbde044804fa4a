"""Turns the JSON of all scripts into one page with tables and plots: `results/README.md`.

It reads what was measured and measures nothing; a number on the page must be in a JSON file.

python benchmarks/summary.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from options import HERE
from plots import Bar, bars
from scoreboard import show

ORDER = (
    "stall", "slowdown", "durable_write", "restore", "small_costs", "policy_speed", "memory",
    "raw_limits", "checkfreq_budget", "interference", "goodput", "failure_injection", "data_overhead",
    "data_resume", "deadline",
    "ranks_stall", "multi_level", "multi_level_restart", "cached_restart", "hot_restart", "ranks_protect",
    "ranks_restore", "memory_tier", "protect", "erasure_codes", "object_store",
)  # fmt: skip
# Which rows of a script make its picture: metric, axis, logarithmic, and what one unit on the axis is.
PICTURES = {
    "stall": ("stall", "milliseconds", True, 1e-3),
    "slowdown": ("slower than without saves", "percent", False, 1.0),
    "durable_write": ("durable, call to completion", "GB/s", False, 1e9),
    "restore": ("restored, cold cache", "GB/s", False, 1e9),
    "memory": ("peak during saves", "GB", False, 1e9),
}


def write_summary(folder: Path) -> Path:
    records = [json.loads(p.read_text()) for name in ORDER if (p := folder / f"{name}.json").exists()]
    if not records:
        raise FileNotFoundError(f"no results in {folder}")
    machine = records[0]["machine"]
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    lines = [
        "# Benchmark results",
        "",
        f"Measured on {records[0]['when']} by `make bench` on {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_bytes'] / 1e9:.0f} GB, Linux {machine['kernel']}, {machine['file_system']}; "
        f"Python {machine['python']}, {packages}.",
        "",
        "Medians; contenders take turns in one run. How and why: "
        "[docs/benchmarks.md](../../docs/benchmarks.md).",
        "",
        "## What must show",
        "",
        "| | measured | wanted | |",
        "|---|---|---|---|",
    ]
    for record in records:
        for promise in record["must_show"]:
            sign = "at most" if promise["at_most"] else "at least"
            measured, limit = (show(promise[key], promise["unit"]) for key in ("measured", "limit"))
            verdict = "holds" if promise["holds"] else "**missed**"
            lines.append(f"| {promise['line']} | {measured} | {sign} {limit} | {verdict} |")
    for record in records:
        lines += ["", f"## {record['title']}", "", f"`{record['command']}`, {record['when']}", ""]
        picture = _picture(record, folder)
        if picture is not None:
            lines += [f"![{record['title']}]({picture})", ""]
        lines += _table(record["rows"])
        lines += [f"\nNote: {note}." for note in record["notes"]]
    page = folder / "README.md"
    page.write_text("\n".join(lines) + "\n")
    return page


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """One line per contender, one column per metric; the samples behind each median are in the JSON."""
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    cells = {(row["contender"], row["metric"]): show(row["median"], row["unit"]) for row in rows}
    lines = ["| | " + " | ".join(metrics) + " |", "|---|" + "---|" * len(metrics)]
    for contender in dict.fromkeys(row["contender"] for row in rows):
        values = (cells.get((contender, metric), "") for metric in metrics)
        lines.append(f"| {contender} | " + " | ".join(values) + " |")
    return lines


def _picture(record: dict[str, Any], folder: Path) -> str | None:
    if record["name"] not in PICTURES:
        drawn = folder / f"{record['name']}.svg"  # by the script itself
        return drawn.name if drawn.exists() else None
    metric, axis, logarithmic, unit = PICTURES[record["name"]]
    chosen = [row for row in record["rows"] if row["metric"] == metric]
    data = [Bar(r["contender"], r["median"] / unit, show(r["median"], r["unit"])) for r in chosen]
    if logarithmic:
        data = [bar for bar in data if bar.value > 0]
    if not data:
        return None
    data.sort(key=lambda bar: bar.value, reverse=record["name"] in ("durable_write", "restore"))
    (folder / f"{record['name']}.svg").write_text(bars(record["title"], axis, data, logarithmic))
    return f"{record['name']}.svg"


if __name__ == "__main__":
    print(f"wrote {write_summary(HERE / 'results')}")
