"""Collects samples, prints the table, judges the must-show lines, and keeps everything as JSON.

A missed line is printed and recorded, never raised: speed on one machine is not a test.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from options import Options

PACKAGES = ("torch", "numpy", "xxhash", "safetensors", "torch_checkpointing")


@dataclass(frozen=True)
class Row:
    """One thing measured several times. `unit` is "s", "B/s", "B", "%", "x" or "" for a count."""

    contender: str
    metric: str
    unit: str
    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


@dataclass(frozen=True)
class MustShow:
    """One line of the promise: `measured` against `limit`, at most or at least."""

    line: str
    measured: float
    limit: float
    at_most: bool
    unit: str

    @property
    def holds(self) -> bool:
        return self.measured <= self.limit if self.at_most else self.measured >= self.limit

    def __str__(self) -> str:
        sign = "≤" if self.at_most else "≥"
        verdict = "PASS" if self.holds else "FAIL"
        return (
            f"{verdict}  {self.line}: {show(self.measured, self.unit)} ({sign} {show(self.limit, self.unit)})"
        )


@dataclass
class Scoreboard:
    """What one script found. `finish` prints and writes it."""

    name: str
    title: str
    options: Options
    rows: list[Row] = field(default_factory=list)
    promises: list[MustShow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _load_at_start: tuple[float, float, float] = field(default_factory=os.getloadavg)

    def add(self, contender: str, metric: str, unit: str, samples: list[float]) -> Row:
        row = Row(contender, metric, unit, tuple(samples))
        self.rows.append(row)
        return row

    def median(self, contender: str, metric: str) -> float:
        return next(r.median for r in self.rows if (r.contender, r.metric) == (contender, metric))

    def at_most(self, line: str, measured: float, limit: float, unit: str = "x") -> None:
        self.promises.append(MustShow(line, measured, limit, True, unit))

    def at_least(self, line: str, measured: float, limit: float, unit: str = "x") -> None:
        self.promises.append(MustShow(line, measured, limit, False, unit))

    def finish(self) -> None:
        print(f"\n{self.title}\n")
        width = max((len(r.contender) for r in self.rows), default=10)
        for r in self.rows:
            spread = f"[{show(min(r.samples), r.unit)} … {show(max(r.samples), r.unit)}]"
            print(f"  {r.contender:<{width}}  {r.metric:<34} {show(r.median, r.unit):>12}  {spread}")
        for note in self.notes:
            print(f"  note: {note}")
        for promise in self.promises:
            print(f"  {promise}")
        self.options.out.mkdir(parents=True, exist_ok=True)
        path = self.options.out / f"{self.name}.json"
        path.write_text(json.dumps(self._record(), indent=1, ensure_ascii=False) + "\n")

    def _record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "command": f"python benchmarks/{self.name}.py" + (" --quick" if self.options.quick else ""),
            "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "quick": self.options.quick,
            "machine": machine(self.options.scratch_parent),
            "load_average": {"at_start": self._load_at_start, "at_end": os.getloadavg()},
            "rows": [asdict(r) | {"median": r.median} for r in self.rows],
            "must_show": [asdict(p) | {"holds": p.holds} for p in self.promises],
            "notes": self.notes,
        }


def show(value: float, unit: str) -> str:
    if unit == "s":
        for factor, name in ((1.0, "s"), (1e-3, "ms")):
            if abs(value) >= factor:
                return f"{value / factor:.3g} {name}"
        return f"{value / 1e-6:.3g} µs"
    if unit == "B/s":
        return f"{value / 1e9:.2f} GB/s"
    if unit == "B":
        return f"{value / 1e6:,.0f} MB"
    if unit == "%":
        return f"{value:.1f}%"
    if unit == "":
        return f"{value:g}"
    return f"1/{1 / value:.0f}" if 0 < value < 0.01 else f"{value:.3g}x"


def machine(where: Path) -> dict[str, Any]:
    """What a reader needs to judge the numbers, and nothing that identifies the host."""
    cpu = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    memory = next((int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo")), 0)
    filesystem = subprocess.run(
        ["stat", "-f", "-c", "%T", str(where)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "kernel": platform.release().partition("-")[0],
        "file_system": filesystem,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
