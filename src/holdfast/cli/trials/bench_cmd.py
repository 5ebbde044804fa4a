"""`holdfast bench`: what disk and machine can do, what a save costs here, how often that lets you save."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.cli.render import LiveLine, add_json_option
from holdfast.cli.result import Block, Result, Table
from holdfast.clock import SystemClock
from holdfast.errors import SetupError, StoreNotFound
from holdfast.stores.os_errors import store_errors
from holdfast.units import format_bytes, format_seconds, parse_bytes, parse_seconds

BUDGETS = (0.01, 0.03, 0.05)
_LEAST_BYTES = 4 << 20
# Model, optimizer and gradients; two images; what torch.save holds while it writes. The disk holds as many.
_STATES = 6
_SHARE_FOR_LIMITS = 0.25
_WAYS = {"torch_save": "torch.save + fsync", "holdfast": "holdfast"}


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


def run(options: argparse.Namespace) -> Result:
    where, seconds, asked = Path(options.directory), parse_seconds(options.seconds), parse_bytes(options.size)
    if not where.is_dir():
        raise StoreNotFound(
            f"there is no folder {where}", hint="give the folder that checkpoints would go to"
        )
    disk = os.statvfs(where)
    size = affordable_size(asked, _available_memory(), disk.f_bavail * disk.f_frsize)
    now = SystemClock().monotonic
    began, load, line = now(), os.getloadavg()[0], LiveLine()
    # Here, because importing it imports torch.
    from holdfast.cli.trials.torch_bench import measure_limits, measure_saves

    with (
        store_errors("measure", str(where)),
        tempfile.TemporaryDirectory(prefix=".holdfast-bench-", dir=where) as made,
    ):
        line.show("measuring memory and disk")
        limits = measure_limits(Path(made), size, seconds * _SHARE_FOR_LIMITS)
        saves = measure_saves(Path(made), size, seconds - (now() - began), line.show)
        line.clear()
    costs = (saves.holdfast, saves.torch_save)
    intervals = [
        Interval(budget, *(interval(one.training_seconds, one.durable_seconds, budget) for one in costs))
        for budget in BUDGETS
    ]
    said = {"directory": where, "asked_bytes": asked, "limits": limits, "load": load, **asdict(saves)}
    return Result({**said, "intervals": intervals}, _text({**said, "limits": asdict(limits)}, intervals))


def affordable_size(asked: int, memory: int, disk: int) -> int:
    """What can be measured without driving the machine into swap or filling the disk."""
    size = min(asked, memory // _STATES, disk // _STATES)
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


def _text(said: dict[str, Any], intervals: list[Interval]) -> Iterator[Block]:
    size, asked, cores = said["state_bytes"], said["asked_bytes"], os.cpu_count() or 1
    state = f"{format_bytes(size)} of AdamW state"
    yield f"{said['directory']}: {state}, medians of {said['rounds']}, {cores} cores"
    if size < 0.9 * asked:
        yield f"  (less than the {format_bytes(asked)} asked for: memory or disk would not have held it)"
    yield from ("", "this machine")
    names = ("memory copy", "digest", "write + fsync, past the cache", "read, past the cache")
    for name, speed in zip(names, said["limits"].values(), strict=False):
        yield f"  {name:<30} {format_bytes(speed):>8}/s"
    yield ""
    # In the order of the fields.
    header = ["", "stops training", "costs in all", "durable after", "restore"]
    rows = [[name, *map(format_seconds, said[way].values())] for way, name in _WAYS.items()]
    yield Table(header, rows, left=(0,))
    yield from ("", "a save this often keeps within a budget of")
    rows = [
        [name, *(format_seconds(getattr(one, f"{way}_seconds")) for one in intervals)]
        for way, name in _WAYS.items()
    ]
    yield Table(["", *(f"{one.budget:.0%}" for one in intervals)], rows, left=(0,))
    if said["load"] > cores / 2:
        yield from (
            "",
            f"other work had a load of {said['load']:.0f} on {cores} cores: these numbers are noisy",
        )
