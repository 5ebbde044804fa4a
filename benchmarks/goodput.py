"""Real trainings killed at random times, default settings: how much of the time was useful?

Each training runs under `holdfast run`, or with two ranks under torchrun, and is killed (SIGKILL, no warning)
after up-times that are drawn from an exponential distribution. ETTR is useful steps, each counted once, times
the time of an undisturbed step, over wall time. Beside it stands what its own restarts would have left to a
rule that knows the failure rate and the cost of a save: `bound`.

    python benchmarks/goodput.py                                      # everything: about a day
    python benchmarks/goodput.py --means 20 --ways default checkfreq  # one row of each
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from goodput_training import RECORD, WAYS
from holdfast.events import SaveCommitted
from holdfast.policy.intervals import exact, goodput
from holdfast.stores.journal import read_events
from options import HERE, Options, scratch
from scoreboard import Scoreboard

BUDGET = 0.03
START_LIMIT = 400.0
NEVER = 10**9


@dataclass(frozen=True)
class Done:
    """Seconds and shares. `restart` is the mean from a kill to the first finished step after it."""

    launch: str
    way: str
    mean: float
    kills: int
    wall: float
    steps_made: int
    steps_useful: int
    step: float
    saves: int
    save_cost: float
    persist: float
    restart: float
    ettr: float
    bound: float

    def line(self) -> str:
        return (
            f"{self.launch:9} {self.way:12} mean {self.mean:4.0f} s  kills {self.kills:3}"
            f"  ETTR {self.ettr:.3f}  bound {self.bound:.3f}"
            f"  redone {self.steps_made - self.steps_useful} of {self.steps_made}"
            f"  saves {self.saves} of {1e3 * self.save_cost:.0f} ms  step {1e3 * self.step:.0f} ms"
            f"  restart {self.restart:.1f} s"
        )


def records(folder: Path) -> list[tuple[int, float, bool]]:
    raw = (folder / "steps").read_bytes() if (folder / "steps").exists() else b""
    whole = len(raw) // RECORD.size * RECORD.size
    return [RECORD.unpack_from(raw, at) for at in range(0, whole, RECORD.size)]


def command(launch: str, folder: Path, way: str) -> list[str]:
    script = [str(HERE / "goodput_training.py"), str(folder), way, str(NEVER)]
    if launch == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                "--max-restarts=1000", *script]  # fmt: skip
    return [sys.executable, "-m", "holdfast.cli.main", "run", "--restarts", "1000", "--no-progress", "0",
            "--", sys.executable, *script]  # fmt: skip


def train_and_kill(launch: str, way: str, mean: float, kills: int, folder: Path, seed: int) -> Done:
    """The wall time runs from the first finished step of all to the first one after the last kill."""
    folder.mkdir(parents=True)
    chance = random.Random(seed)
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command(launch, folder, way), stdout=output, stderr=output, start_new_session=True
        )
        lives: list[tuple[int, int, float]] = []  # records from, to, and when it was killed
        try:
            for _ in range(kills):
                first = len(records(folder))
                begun = wait_for_step(folder, first, process)
                time.sleep(max(0.0, begun + chance.expovariate(1 / mean) - time.time()))
                killed = time.time()
                os.kill(int((folder / "pid-0").read_text()), signal.SIGKILL)
                lives.append((first, len(records(folder)), killed))
            wait_for_step(folder, lives[-1][1], process)
        finally:
            process.kill()  # first, or it would start the training again
            process.wait()
            for pid in folder.glob("pid-*"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid.read_text()), signal.SIGKILL)
    return account(launch, way, mean, records(folder), lives, folder)


def wait_for_step(folder: Path, seen: int, process: subprocess.Popen[bytes]) -> float:
    """When the first step after `seen` records was done."""
    limit = time.time() + START_LIMIT
    while True:
        found = records(folder) if (folder / "steps").exists() else []
        if len(found) > seen:
            return found[seen][1]
        if time.time() > limit or process.poll() is not None:
            said = (folder / "output").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the training did not start again:\n{said}")
        time.sleep(0.05)


def account(
    launch: str, way: str, mean: float, done: list[tuple[int, float, bool]],
    lives: list[tuple[int, int, float]], folder: Path,
) -> Done:  # fmt: skip
    quiet: list[float] = []
    beside: list[float] = []
    restarts: list[float] = []
    for first, after, killed in lives:
        restarts.append(done[after][1] - killed)
        for i in range(first + 4, after):  # the first steps of a process warm up
            (beside if done[i][2] else quiet).append(done[i][1] - done[i - 1][1])
    step = sum(quiet) / len(quiet)
    made = lives[-1][1]
    useful = done[made][0] - 1  # the one before the first step after the last kill
    wall = done[made][1] - done[0][1]
    saves, persist = saves_of(way, folder, len(lives))
    cost = max(0.0, sum(beside) - len(beside) * step) / max(saves, 1)
    up = 1 - sum(restarts) / wall
    # The kills as they fell, not as they were meant: a few dozen draws differ.
    mtbf = (wall - sum(restarts)) / len(lives)
    price = max(cost, 1e-3)
    interval = max(exact(price, mtbf), persist, price / BUDGET)
    return Done(
        launch=launch, way=way, mean=mean, kills=len(lives), wall=wall, steps_made=made,
        steps_useful=useful, step=step, saves=saves, save_cost=cost, persist=persist,
        restart=sum(restarts) / len(restarts), ettr=useful * step / wall,
        bound=up * goodput(interval, price, mtbf, 0.0, persist),
    )  # fmt: skip


def saves_of(way: str, folder: Path, lives: int) -> tuple[int, float]:
    """How many were committed, and how long the middle one took to become durable."""
    if way == "torch.save":
        return lives, 0.0
    events = read_events(folder / "run")
    found = sorted(event.persist_seconds for event in events if isinstance(event, SaveCommitted))
    return len(found), found[len(found) // 2] if found else math.inf


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every_way = [*WAYS, "torch.save"]
    parser.add_argument(
        "--means", type=float, nargs="+", default=[20.0, 60.0, 300.0], help="seconds of up-time"
    )
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--ways", nargs="+", default=every_way, choices=every_way)
    parser.add_argument("--launches", nargs="+", default=["run", "torchrun"], choices=["run", "torchrun"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="the default alone, three kills 5 s apart")
    parser.add_argument("--dir", type=Path, default=HERE.parent / "runs", help="picks the disk")
    parser.add_argument("--out", type=Path, default=None, help="where the JSON goes")
    given = parser.parse_args()
    if given.quick:
        given.means, given.kills, given.ways, given.launches = [5.0], 3, ["default"], ["run"]
    out = given.out or (given.dir / "bench-quick-results" if given.quick else HERE / "results")
    options = Options(given.quick, 1, given.dir, out)
    board = Scoreboard("goodput", "Useful share of time under random kills", options)
    with scratch(board.options) as folder:
        for mean in given.means:
            for launch in given.launches:
                for way in given.ways:
                    place = folder / f"{launch}-{way}-{mean:g}".replace(" ", "-")
                    one = train_and_kill(launch, way, mean, given.kills, place, given.seed)
                    print(one.line(), flush=True)
                    board.notes.append(json.dumps(asdict(one)))
                    board.add(f"{way}, {launch}, one in {mean:g} s", "ETTR", "x", [one.ettr])
                    board.add(f"{way}, {launch}, one in {mean:g} s", "bound", "x", [one.bound])
                    if way == "default":
                        line = f"{launch}, one kill in {mean:g} s: below the bound by"
                        board.at_most(line, one.bound - one.ettr, 0.02)
    board.finish()


if __name__ == "__main__":
    main()
