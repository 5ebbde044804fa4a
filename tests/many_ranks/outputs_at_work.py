"""Ranks that keep files of their own together. Prints what happened as one line of JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ranks_at_work import dist, in_ranks, nn, torch

import holdfast
from holdfast.checkpoints.find import committed
from holdfast.engine import signs_of_life
from holdfast.engine.outputs_block import Output
from holdfast.jobs.halt import HaltNote, write_halt
from holdfast.stores.store import CheckpointStore

WORLD = 3


def a_run(base: Path, **options: Any) -> holdfast.Run:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"every": "1000 steps", "wait_limit": 20.0, **options}
    return holdfast.Run(base / "run", **settings, model=model, optimizer=optimizer)


def attempt(run: holdfast.Run, step: int, act: Callable[[Output], object]) -> str:
    try:
        with run.output("x", step=step) as out:
            act(out)
    except Exception as error:  # noqa: BLE001  what the user would see is what is looked at
        return f"{type(error).__name__}: {error}"
    return out.committed or "nothing"


def kept(base: Path) -> list[int]:
    return [one.step for one in committed(CheckpointStore(base / "run/outputs/x"))]


def contents(folder: Path | None) -> dict[str, str] | None:
    if folder is None:
        return None
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}


def look(run: holdfast.Run, **options: Any) -> Any:
    try:
        return contents(run.restored_output("x", **options))
    except holdfast.RestoreError as error:
        return type(error).__name__


def life(base: Path, rank: int) -> dict[str, Any]:
    """Outputs that succeed and outputs that fail, in one run."""

    def mine(out: Output) -> None:
        # Rank 1 has nothing to keep.
        if rank != 1:
            out.path("part/mine").write_text(f"rank {rank} step {out.step}")

    def fails(out: Output) -> None:
        mine(out)
        if rank == 1:
            raise ZeroDivisionError("rank 1 stumbles")

    def invalid_on(who: int) -> Callable[[Output], None]:
        def act(out: Output) -> None:
            mine(out)
            if rank == who:
                out.invalid(f"rank {who} does not like it")

        return act

    with a_run(base) as run:
        told = {
            "none yet": look(run),
            "first": attempt(run, 1, mine),
            "second": attempt(run, 2, mine),
            "exception": attempt(run, 3, fails),
            "invalid on 0": attempt(run, 4, invalid_on(0)),
            "invalid on 2": attempt(run, 4, invalid_on(2)),
            "third": attempt(run, 5, mine),
            "restored": look(run),
            "of another": look(run, rank=2),
        }
    return told


def scenario_life(base: Path) -> dict[str, Any]:
    told = in_ranks(WORLD, lambda rank: life(base, rank), base / "talk")
    after = kept(base)
    (file,) = (base / "run/outputs/x/ckpt").glob("*-s000000000005-*/file-00000-r00002.out")
    file.write_bytes(file.read_bytes()[::-1])

    def again(rank: int) -> Any:
        with a_run(base) as run:
            return look(run)

    def fewer(rank: int) -> Any:
        with a_run(base) as run:
            return [look(run), look(run, rank=2 - rank)]

    return {
        "told": told,
        "kept": after,
        "damaged": in_ranks(WORLD, again, base / "again"),
        "fewer": in_ranks(2, fewer, base / "fewer"),
        "left": os.listdir(base / "run/outputs/.scratch"),
    }


def scenario_killed(base: Path) -> dict[str, Any]:
    """A rank is killed inside its block. The others hear nothing of it and give up."""

    def work(rank: int) -> Any:
        def act(out: Output) -> None:
            out.path("mine").write_text(str(rank))
            if rank == 2 and out.step == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        # Short, but long enough to connect on a busy machine.
        with a_run(base, wait_limit=8.0) as run:
            said = [attempt(run, 1, act), attempt(run, 2, act)]
            (base / f"said-{rank}").write_text(json.dumps(said))
            os._exit(0)  # a rank is missing, so this run cannot end well

    in_ranks(WORLD, work, base / "talk")
    said = [json.loads((base / f"said-{rank}").read_text()) for rank in range(2)]

    def again(rank: int) -> Any:
        with a_run(base) as run:
            return [look(run), attempt(run, 3, lambda out: out.path("mine").write_text(str(rank)))]

    return {"said": said, "kept": kept(base), "again": in_ranks(WORLD, again, base / "again")}


def scenario_halt(base: Path) -> dict[str, Any]:
    """A note for a run of three, whose ranks also compare what `save_due` tells them."""
    signs_of_life.HEARTBEAT_SECONDS = 0.01

    def work(rank: int) -> Any:
        due = []
        try:
            with a_run(base, every="3 steps") as run:
                for number in run.steps(100_000):
                    if number < 10:
                        due.append(run.save_due)
                    if number == 10 and rank == 0:
                        write_halt(run.path, HaltNote("enough", "a person", 0.0))
                    dist.barrier()  # training would tie the ranks together like this
                    run.end_step()
        except SystemExit as stopped:
            return {"exit": stopped.code, "step": run.step, "due": due}
        return None

    halted = in_ranks(WORLD, work, base / "talk")
    newest = next(iter(committed(CheckpointStore(base / "run")))).step
    return {"halted": halted, "newest": newest, "again": in_ranks(WORLD, work_once(base), base / "again")}


def scenario_best(base: Path) -> dict[str, Any]:
    """Every rank reports another number; rank 0's is the one that counts."""

    def work(rank: int) -> Any:
        with a_run(base, every="100 steps", keep="latest 2, best of -val_loss") as run:
            for number in run.steps(6):
                run.end_step()
                run.report(val_loss=abs(number - 2 - rank))
                for handle in list(run._require_open().saves.saver._pending):
                    handle.wait()
        return None

    in_ranks(WORLD, work, base / "talk")
    found = committed(CheckpointStore(base / "run"))
    return {
        "saved": sorted((one.step, one.manifest.metrics.get("val_loss")) for one in found if one.manifest)
    }


def work_once(base: Path) -> Callable[[int], Any]:
    def work(rank: int) -> Any:
        with a_run(base) as run:
            return run.step

    return work


SCENARIOS = {"life": scenario_life, "killed": scenario_killed, "halt": scenario_halt, "best": scenario_best}

if __name__ == "__main__":
    base = Path(sys.argv[1])
    print(json.dumps({name: play(base / name) for name, play in SCENARIOS.items()}))
