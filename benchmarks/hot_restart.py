"""Hot restart, as in the SC21 experiment: 8 nodes and 4 spares; a node breaks every 10 epochs, disk and all.

A node is a keeper with its address, its worker and its folder, all on this machine. One training, three ways:

- undisturbed, without keepers;
- under `holdfast run --nodes 8 --spares 4`: four losses must be survived with the same losses to the last
  digit; the fifth must end with the newest checkpoint flushed and exit code 91. Then the same command again,
  on 8 fresh nodes, trains to the end;
- root mode: a launcher without spares, all checkpoints in the shared folder. It ends at the first loss.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from line_plot import Panel, over_time
from options import HERE, parse_options, scratch
from scoreboard import Scoreboard

TRAINING = [sys.executable, str(HERE / "hot_restart_training.py")]
LIMIT_SECONDS = 600
TOO_FEW_NODES = 91
# One is the leader and rank 0, one is lost twice. With xor:4, two of a set at once would be too many.
VICTIMS = ("node003", "node000", "node005", "node003", "node006", "node001")


class Experiment:
    def __init__(self, folder: Path, nodes: int, spares: int, between: int) -> None:
        self.folder, self.nodes, self.spares = folder, nodes, spares
        victims = [v for v in VICTIMS if int(v[4:]) < nodes][: spares + 1]
        self.errors = {str(between * (number + 1)): victim for number, victim in enumerate(victims)}
        self.epochs = between * (len(victims) + 1)
        self.tiers = json.dumps(["$NODE_DIR/cache", f"xor:{min(nodes, 4)}", f"run every {between}"])

    def plain(self, name: str, **environ: str) -> tuple[Path, list[int]]:
        """Ranks of a launcher that keeps nothing. One that fails ends the others."""
        base = self.folder / name
        base.mkdir()
        request = {"base": str(base), "world": self.nodes, "epochs": self.epochs, "environ": environ}
        done = subprocess.run(
            [sys.executable, str(HERE / "hot_restart_ranks.py")], input=json.dumps(request) + "\n",
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=LIMIT_SECONDS, check=True,
        )  # fmt: skip
        return base, json.loads(done.stdout)

    def kept(self, base: Path, first: int, count: int, **environ: str) -> list[int]:
        """Keepers on nodes `first` and following, until all of them have ended."""
        base.mkdir(exist_ok=True)
        keepers = []
        for index in range(first, first + count):
            command = [
                sys.executable, "-m", "holdfast.cli.main", "run", "--nodes", str(self.nodes),
                "--spares", str(count - self.nodes), "--meet", str(base / "meet"), "--silence", "30 s",
                "--node-address", f"127.0.0.{10 + index}", "--log", str(base / f"log-{index}"), "--",
                *TRAINING, str(base), str(self.epochs),
            ]  # fmt: skip
            told = {"NODE_DIR": str(base / f"disk{index}"), "TIERS": self.tiers, "KEPT": "1", **environ}
            with (base / f"out-{index}").open("wb") as out:
                keepers.append(
                    subprocess.Popen(
                        command, env={**os.environ, **told}, stdout=out, stderr=subprocess.STDOUT
                    )
                )
        end = time.monotonic() + LIMIT_SECONDS
        return [keeper.wait(max(end - time.monotonic(), 1.0)) for keeper in keepers]


def losses(base: Path) -> list[tuple[int, str, float]]:
    lines = (base / "losses").read_text().splitlines()
    return [(int(e), value, float(at)) for e, value, at in (line.split() for line in lines)]


def recoveries(base: Path) -> list[float]:
    """From each error until the first epoch after it."""
    found = []
    for mark in sorted(base.glob("error-*"), key=lambda path: path.stat().st_mtime):
        broke = mark.stat().st_mtime
        after = [at for _, _, at in losses(base) if at > broke]
        if after:
            found.append(min(after) - broke)
    return found


def run(folder: Path, nodes: int, spares: int, between: int) -> dict[str, Any]:
    job = Experiment(folder, nodes, spares, between)
    reference, codes = job.plain("undisturbed")
    expected = {epoch: value for epoch, value, _ in losses(reference)}
    kept = folder / "kept"
    ends = job.kept(kept, 0, nodes + spares, ERRORS=json.dumps(job.errors))
    names = sorted(os.listdir(kept / "run" / "ckpt"))
    before_fifth = losses(kept)
    hot = [json.loads(line) for line in (kept / "resumed").read_text().splitlines()]
    again = job.kept(kept, nodes + spares, nodes)
    root, root_codes = job.plain("root", ERRORS=json.dumps(job.errors), HOLDFAST_NODE_FROM_RANK="1")
    return {
        "nodes": nodes,
        "spares": spares,
        "epochs": job.epochs,
        "errors": job.errors,
        "undisturbed_codes": codes,
        "kept_codes": ends,
        "again_codes": again,
        "root_codes": root_codes,
        "root_epochs": len({epoch for epoch, _, _ in losses(root)}),
        "epochs_before_the_last_error": len({epoch for epoch, _, _ in before_fifth}),
        "newest_after_the_last_error": names[-1],
        "hot_restarts": hot,
        "different_losses": sum(expected[epoch] != value for epoch, value, _ in losses(kept)),
        "epochs_in_the_end": len({epoch for epoch, _, _ in losses(kept)}),
        "recovery_seconds": recoveries(kept)[:spares],
        "curves": {
            name: [[at - first, epoch] for epoch, _, at in points]
            for name, points in (("kept", losses(kept)), ("root", losses(root)))
            for first in [points[0][2]]
        },
    }


def main() -> None:
    options = parse_options(__doc__, repeats=1)
    nodes, spares, between = (3, 1, 3) if options.quick else (8, 4, 10)
    # Made first: it notes the load of the machine.
    board = Scoreboard(
        "hot_restart", f"{nodes} nodes, {spares} spares, an error every {between} epochs", options
    )
    with scratch(options) as folder:
        found = run(folder, nodes, spares, between)
    lost = len(found["errors"])
    survivors = nodes + spares - lost
    board.add("kept", "from an error to the next epoch", "s", found["recovery_seconds"])
    board.at_least("errors survived", len(found["recovery_seconds"]), spares, "")
    board.at_most("losses that differ from the undisturbed run", found["different_losses"], 0, "")
    board.at_least("epochs in the end", found["epochs_in_the_end"], found["epochs"], "")
    flushed = found["kept_codes"].count(TOO_FEW_NODES)
    board.at_least(f"survivors of the last error that end with {TOO_FEW_NODES}", flushed, survivors, "")
    read = sum(one.get("run", 0) for one in found["hot_restarts"])
    board.at_most("bytes that hot restarts read from the shared folder", read, 0, "B")
    board.at_most("epochs of the root run", found["root_epochs"], between + 1, "")
    board.notes.append(
        f"newest checkpoint flushed after the last error: {found['newest_after_the_last_error']}"
    )
    board.notes.append(
        f"median recovery {statistics.median(found['recovery_seconds']):.1f} s, most of it torch's import"
    )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "hot_restart_raw.json").write_text(json.dumps(found, indent=1))
    panels = [Panel(f"epoch, {name}", found["curves"][name]) for name in ("kept", "root")]
    (options.out / "hot_restart.svg").write_text(over_time(board.title, panels))
    board.finish()


if __name__ == "__main__":
    main()
