"""Real trainings killed at random times, default settings: how much of the time was useful?

Each training runs under `holdfast run`, or with two ranks under torchrun, and is killed (SIGKILL, no warning)
after up-times that are drawn from an exponential distribution. ETTR is useful steps, each counted once, times
the time of an undisturbed step, over wall time. Beside it stands what its own restarts would have left to a
rule that knows the failure rate and the cost of a save: `bound`.

A step waits most of its time, as beside an accelerator (see `goodput_training.py`), so that several of these
commands run side by side. Every row is added to `results/goodput.jsonl` when it is done; the newest of its
kind counts.

    python benchmarks/goodput.py                                      # everything: about 20 hours
    python benchmarks/goodput.py --means 20 --ways default checkfreq  # one row of each
    python benchmarks/goodput.py --write-docs                         # the rows so far into the docs
"""

from __future__ import annotations

import argparse
import contextlib
import json
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
from options import HERE, REPOSITORY, Options, scratch
from scoreboard import Scoreboard, machine

BUDGET = 0.03
START_LIMIT = 400.0
NEVER = 10**9
PAGE = REPOSITORY / "docs" / "benchmarks.md"
BEGIN, END = "<!-- goodput.py writes from here", "<!-- goodput.py: to here -->"
# torch keeps one store for all generations of a node's workers, and their keys with it: a new rank that asks
# before its peer has answered finds the address of a dead one, and waits for it. With this, each generation
# has a store of its own. See docs/ranks.md.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


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
    when: str = ""
    command: str = ""

    @property
    def kind(self) -> tuple[float, str, str]:
        return self.mean, self.launch, self.way

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
    # Its pauses double while it sees no checkpoint of its own kind, which torch.save does not write.
    pause = ["--pause", "0"] if way == "torch.save" else []
    return [sys.executable, "-m", "holdfast.cli.main", "run", "--restarts", "1000", "--no-progress", "0",
            *pause, "--", sys.executable, *script]  # fmt: skip


def train_and_kill(launch: str, way: str, mean: float, kills: int, folder: Path, seed: int) -> Done:
    """The wall time runs from the first finished step of all to the first one after the last kill."""
    folder.mkdir(parents=True)
    chance = random.Random(seed)
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command(launch, folder, way),
            stdout=output,
            stderr=output,
            # Nothing from other rows, which fail at other rates: it starts from what a new user knows.
            env=os.environ | OWN_STORE | {"XDG_CACHE_HOME": str(folder / "cache")},
            start_new_session=True,
        )
        lives: list[tuple[int, int, float]] = []  # records from, to, and when it was killed
        try:
            for _ in range(kills):
                first = len(records(folder))
                begun = wait_for_step(folder, first, process)
                time.sleep(max(0.0, begun + chance.expovariate(1 / mean) - time.time()))
                writer = int((folder / "pid-0").read_text())
                victim = chance.choice(sorted(folder.glob("pid-*")))
                killed = time.time()
                os.kill(int(victim.read_text()), signal.SIGKILL)
                wait_for_end(writer)  # where another rank was killed, it may still end the step that it is in
                lives.append((first, len(records(folder)), killed))
            wait_for_step(folder, lives[-1][1], process)
        finally:
            process.kill()  # first, or it would start the training again
            process.wait()
            for pid in folder.glob("pid-*"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid.read_text()), signal.SIGKILL)
    return account(launch, way, mean, records(folder), lives, folder)


def wait_for_end(pid: int) -> None:
    limit = time.time() + START_LIMIT
    while Path(f"/proc/{pid}/exe").exists():  # a zombie has none
        if time.time() > limit:
            raise RuntimeError(f"process {pid} outlived the rank beside it")
        time.sleep(0.02)


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
    saves, persist = saves_of(way, folder, sum(flag for _, _, flag in done[:made]))
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
        when=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        command=f"goodput.py --means {mean:g} --kills {len(lives)} --ways '{way}' --launches {launch}",
    )  # fmt: skip


def saves_of(way: str, folder: Path, flagged: int) -> tuple[int, float]:
    """How many were committed, and how long the middle one took to become durable."""
    if way == "torch.save":
        return flagged, 0.0
    events = read_events(folder / "run")
    found = sorted(event.persist_seconds for event in events if isinstance(event, SaveCommitted))
    return len(found), found[len(found) // 2] if found else 0.0


def rows_so_far(out: Path) -> list[Done]:
    """The newest row of each kind, in the order of the table."""
    found: dict[tuple[float, str, str], Done] = {}
    path = out / "goodput.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        one = Done(**json.loads(line))
        found[one.kind] = one
    every_way = [*WAYS, "torch.save"]
    return sorted(found.values(), key=lambda one: (one.launch, one.mean, every_way.index(one.way)))


def keep(one: Done, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / "goodput.jsonl").open("a") as file:  # one write, so that runs side by side can share it
        file.write(json.dumps(asdict(one)) + "\n")


def finish(board: Scoreboard) -> None:
    for one in rows_so_far(board.options.out):
        name = f"{one.way}, {one.launch}, one in {one.mean:g} s"
        board.add(name, "ETTR", "x", [one.ettr])
        if one.saves:  # or nothing is known of what one costs
            board.add(name, "bound", "x", [one.bound])
        if one.way == "default":
            line = f"{one.launch}, one kill in {one.mean:g} s: below the bound by"
            board.at_most(line, one.bound - one.ettr, 0.02)
    board.finish()


def write_docs(rows: list[Done], where: Path) -> None:
    here = machine(where)
    text = [
        f"{here['cpu']}, {here['cores']} cores, Linux {here['kernel']}, {here['file_system']}, "
        f"torch {here['packages']['torch']}; measured between {min(r.when for r in rows)} and "
        f"{max(r.when for r in rows)}. Below the bound by more than 0.02: "
        + (", ".join(f"{r.launch} {r.mean:g} s" for r in rows if missed(r)) or "no row of the default")
        + ".",
        "",
        "| launcher | one kill in | saves | kills | ETTR | bound | steps redone | a save costs | restart |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        text.append(
            f"| {r.launch} | {r.mean:g} s | {r.way}: {r.saves} | {r.kills} | {r.ettr:.3f} "
            f"| {f'{r.bound:.3f}' if r.saves else '–'} "
            f"| {r.steps_made - r.steps_useful} of {r.steps_made} | {1e3 * r.save_cost:.0f} ms "
            f"| {r.restart:.1f} s |"
        )
    page = PAGE.read_text()
    head = page[: page.index("\n", page.index(BEGIN)) + 1]
    PAGE.write_text(head + "\n" + "\n".join(text) + "\n\n" + page[page.index(END) :])


def missed(one: Done) -> bool:
    return one.way == "default" and one.bound - one.ettr > 0.02


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
    parser.add_argument("--write-docs", action="store_true", help="measure nothing: write what there is")
    parser.add_argument("--dir", type=Path, default=HERE.parent / "runs", help="picks the disk")
    parser.add_argument("--out", type=Path, default=None, help="where the JSON goes")
    given = parser.parse_args()
    if given.quick:
        given.means, given.kills, given.ways, given.launches = [5.0], 3, ["default"], ["run"]
    out = given.out or (given.dir / "bench-quick-results" if given.quick else HERE / "results")
    options = Options(given.quick, 1, given.dir, out)
    board = Scoreboard("goodput", "Useful share of time under random kills", options)
    if given.write_docs:
        finish(board)
        return write_docs(rows_so_far(out), given.dir if given.dir.exists() else REPOSITORY)
    with scratch(board.options) as folder:
        for mean in given.means:
            for launch in given.launches:
                for way in given.ways:
                    place = folder / f"{launch}-{way}-{mean:g}".replace(" ", "-")
                    one = train_and_kill(launch, way, mean, given.kills, place, given.seed)
                    print(one.line(), flush=True)
                    keep(one, out)
    finish(board)


if __name__ == "__main__":
    main()
