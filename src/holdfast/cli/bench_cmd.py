"""`holdfast bench`: what disk and machine can do, what a save costs here, how often that lets you save."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.cli.bench_limits import Limits, measure_limits
from holdfast.cli.exit_codes import OK
from holdfast.cli.json_output import add_json_option, print_json
from holdfast.cli.terminal import clean, columns, width
from holdfast.clock import SystemClock
from holdfast.errors import SetupError, StoreNotFound
from holdfast.stores.os_errors import store_errors
from holdfast.units import format_bytes, format_seconds, parse_bytes, parse_seconds

BUDGETS = (0.01, 0.03, 0.05)
_LEAST_BYTES = 4 << 20
# Model, optimizer and gradients; two images; what torch.save holds while it writes.
_MEMORY_PER_STATE = 6
_DISK_PER_STATE = 6
_SHARE_FOR_LIMITS = 0.25


@dataclass(frozen=True)
class Interval:
    """The shortest time between two saves that keeps within `budget` of training time."""

    budget: float
    holdfast_seconds: float
    torch_save_seconds: float


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="what this disk and machine can do, and how often that lets you save",
        description="Measures in a temporary folder inside DIR and removes it again.",
    )
    parser.add_argument("directory", metavar="DIR", help="where checkpoints would go")
    parser.add_argument(
        "--size", default="1GB", metavar="BYTES", help="size of the training state; default 1GB"
    )
    parser.add_argument("--seconds", default="60", metavar="TIME", help="how long it may take; default 60")
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    where, seconds, asked = Path(options.directory), parse_seconds(options.seconds), parse_bytes(options.size)
    if not where.is_dir():
        raise StoreNotFound(
            f"there is no folder {where}", hint="give the folder that checkpoints would go to"
        )
    size = affordable_size(asked, _available_memory(), _free_bytes(where))
    clock = SystemClock()
    began, load = clock.monotonic(), os.getloadavg()[0]
    # Here, because importing it imports torch.
    from holdfast.cli.torch_bench_saves import measure_saves

    with (
        store_errors("measure", str(where)),
        tempfile.TemporaryDirectory(prefix=".holdfast-bench-", dir=where) as made,
    ):
        _tell("measuring memory and disk")
        limits = measure_limits(Path(made), size, seconds * _SHARE_FOR_LIMITS)
        measured = measure_saves(Path(made), size, seconds - (clock.monotonic() - began), _tell)
        _tell("")
    intervals = [
        Interval(
            budget,
            interval(measured.holdfast.training_seconds, measured.holdfast.durable_seconds, budget),
            interval(measured.torch_save.training_seconds, measured.torch_save.durable_seconds, budget),
        )
        for budget in BUDGETS
    ]
    if options.json:
        print_json(
            {
                "directory": where,
                "asked_bytes": asked,
                "limits": limits,
                "load": load,
                **asdict(measured),
                "intervals": intervals,
            }
        )
    else:
        _print(where, asked, limits, measured, intervals)
        if load > (os.cpu_count() or 1) / 2:
            print(f"\nother work had a load of {load:.0f} on {os.cpu_count()} cores: these numbers are noisy")
    return OK


def affordable_size(asked: int, memory: int, disk: int) -> int:
    """What can be measured without driving the machine into swap or filling the disk."""
    size = min(asked, memory // _MEMORY_PER_STATE, disk // _DISK_PER_STATE)
    if size < _LEAST_BYTES:
        raise SetupError(
            f"cannot measure a state of {format_bytes(asked)}: {format_bytes(memory)} of memory and"
            f" {format_bytes(disk)} of disk are free",
            hint=f"--size must be at least {format_bytes(_LEAST_BYTES)}" if asked < _LEAST_BYTES else None,
        )
    return size


def interval(training_seconds: float, durable_seconds: float, budget: float) -> float:
    """Seconds between saves that take `budget` of training time. One must be durable before the next."""
    return max(training_seconds / budget, durable_seconds)


def _available_memory() -> int:
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _free_bytes(where: Path) -> int:
    state = os.statvfs(where)
    return state.f_bavail * state.f_frsize


def _tell(doing: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[2K{doing[: width() - 1]}")
        sys.stderr.flush()


def _print(where: Path, asked: int, limits: Limits, measured: Any, intervals: list[Interval]) -> None:
    size = format_bytes(measured.state_bytes)
    print(f"{clean(where)}: {size} of AdamW state, medians of {measured.rounds}, {os.cpu_count()} cores")
    if measured.state_bytes < 0.9 * asked:
        print(f"  (less than the {format_bytes(asked)} asked for: memory or disk would not have held it)")
    print("\nthis machine")
    for name, speed in (
        ("memory copy", limits.memory_copy),
        ("digest", limits.digest),
        ("write + fsync, past the cache", limits.write_and_fsync),
        ("read, past the cache", limits.read),
    ):
        print(f"  {name:<30} {format_bytes(speed):>8}/s")
    print()
    header = ["", "stops training", "costs in all", "durable after", "restore"]
    rows = [["torch.save + fsync", *_costs(measured.torch_save)], ["holdfast", *_costs(measured.holdfast)]]
    for line in columns(header, rows, left=(0,)):
        print(line)
    print("\na save this often keeps within a budget of")
    rows = [
        ["torch.save + fsync", *(format_seconds(one.torch_save_seconds) for one in intervals)],
        ["holdfast", *(format_seconds(one.holdfast_seconds) for one in intervals)],
    ]
    for line in columns(["", *(f"{one.budget:.0%}" for one in intervals)], rows, left=(0,)):
        print(line)


def _costs(costs: Any) -> list[str]:
    return [
        format_seconds(costs.stall_seconds),
        format_seconds(costs.training_seconds),
        format_seconds(costs.durable_seconds),
        format_seconds(costs.restore_seconds),
    ]
