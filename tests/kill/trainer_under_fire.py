"""A trainer that is killed with SIGKILL at random instants, and the server that forks it again and again.

torch is imported once, here; each attempt is a fork. A program of its own and not part of the test process:
forking is safe only while no other thread runs. Prints one JSON line with what happened.
"""

import contextlib
import gc
import importlib
import json
import mmap
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import torch

import holdfast
import holdfast.engine.housekeeping as housekeeping
import holdfast.engine.torch_resume as resume_module
from holdfast.engine.torch_snapshots import Snapshots
from holdfast.staging.torch_stager import Snapshot
from holdfast.stores.posix import PosixIO
from holdfast.stores.store import CheckpointStore
from holdfast.testing.torch_loops import Objects, exact

EPOCHS = 3
IO_VERBS = (
    "make_directory", "create", "preallocate", "write_at", "truncate", "fsync", "fsync_directory", "rename",
    "unlink", "remove_directory", "append", "lock", "open_read", "read_at", "list_names",
)  # fmt: skip
# What was going on when the kill came: one byte each, shared with the parent, which reads it afterwards.
PHASES: dict[str, tuple[Any, str]] = {
    "compute": (Objects, "train_on"),
    "take": (Snapshots, "take"),
    "copy": (Snapshot, "finish"),
    "write": (CheckpointStore, "write"),
    "commit": (CheckpointStore, "publish"),
    "prune": (housekeeping, "prune"),
    "retire": (CheckpointStore, "retire"),
    "restore": (resume_module, "restore_newest"),
    "claim": (CheckpointStore, "claim"),
}


FIRST_MODULES = frozenset(sys.modules)


class Log:
    """Lines that survive the writer: one write call each, straight to the file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def say(self, **what: Any) -> None:
        os.write(self._file, (json.dumps(what) + "\n").encode())


def read_log(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def tiers_of(folder: Path) -> list[str] | None:
    """Each run of a campaign has other tiers: its folder alone, memory before it, a node's disk, a copy."""
    number = int(folder.name.removeprefix("run") or 0) if folder.name.startswith("run") else 0
    local, outer = f"{folder}-local", f"{folder}-outer"
    return [
        None,
        ["memory", "run"],
        ["memory", "run every 3"],
        ["run", outer],
        [local, "single", "run every 3"],
        ["memory", "run", f"{outer} every 2"],
    ][number % 6]


def train(folder: Path, log: Log) -> None:
    objects = Objects()
    with holdfast.Run(folder, every="2 steps", keep=2, tiers=tiers_of(folder), **objects.tracked) as run:
        log.say(resumed=run.resumed.step if run.resumed else 0)
        for _ in run.epochs(EPOCHS):
            for batch in run.batches(objects.loader):
                loss = objects.train_on(batch)
                log.say(step=run.step + 1, loss=exact(loss), state=objects.fingerprint())
                run.end_step(loss=loss)
                if run.step % 5 == 0:
                    run.save_now().wait()
                    log.say(acknowledged=run.step)
    log.say(finished=run.step, state=objects.fingerprint())
    log.say(modules=sorted(set(sys.modules) - FIRST_MODULES))


def import_what_forks_import(log_path: Path) -> None:
    """What the reference run imported on its way, once for all forks: most of the cost of an attempt."""
    for record in read_log(log_path):
        for name in record.get("modules", ()):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    if threading.active_count() != 1:
        raise RuntimeError(f"an import has started a thread: {threading.enumerate()}")
    # A collection in a fork would write to, and so copy, every page that they share.
    gc.collect()
    gc.freeze()


def watch_phases(shared: mmap.mmap, kill_in: tuple[str, int, float] | None) -> None:
    """Note in shared memory which phases are running; die in the nth call of one, a moment after it began."""
    calls = {name: 0 for name in PHASES}
    for index, (name, (owner, attribute)) in enumerate(PHASES.items()):
        real = getattr(owner, attribute)

        def watched(
            *args: Any, _real: Any = real, _index: int = index, _name: str = name, **kwargs: Any
        ) -> Any:
            calls[_name] += 1
            if kill_in and (kill_in[0], kill_in[1]) == (_name, calls[_name]):
                threading.Timer(kill_in[2], os.kill, (os.getpid(), signal.SIGKILL)).start()
            shared[_index] += 1
            try:
                return _real(*args, **kwargs)
            finally:
                shared[_index] -= 1

        setattr(owner, attribute, watched)


def die_at_call(nth: int) -> None:
    """SIGKILL before the nth call to the file system."""
    count = [0]
    for verb in IO_VERBS:
        real = getattr(PosixIO, verb)

        def counted(*args: Any, _real: Any = real, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return _real(*args, **kwargs)

        setattr(PosixIO, verb, counted)


def attempt(folder: Path, log_path: Path, plan: tuple[Any, ...], shared: mmap.mmap) -> tuple[bool, float]:
    """One process. Whether it was killed, and how long it lived."""
    for index in range(len(PHASES)):
        shared[index] = 0
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            watch_phases(shared, plan[1:] if plan[0] == "phase" else None)
            if plan[0] == "io":
                die_at_call(plan[1])
            train(folder, Log(log_path))
            status = 0
        except BaseException as error:  # noqa: BLE001  the parent reads it in the log
            Log(log_path).say(error=repr(error))
        finally:
            os._exit(status)
    if plan[0] == "time":
        time.sleep(plan[1])
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status), time.monotonic() - started


def choose_plan(dice: random.Random, lifetime: float) -> tuple[Any, ...]:
    kind = dice.choice(["time", "time", "io", "phase"])
    if kind == "time":
        return ("time", dice.uniform(0, lifetime))
    if kind == "io":
        return ("io", dice.randint(1, 400))
    return ("phase", dice.choice(list(PHASES)), dice.randint(1, 6), dice.choice([0.0, 0.001, 0.003]))


def main(work: Path, kills_wanted: int, seed: int) -> None:
    torch.set_num_threads(1)
    dice = random.Random(seed)
    shared = mmap.mmap(-1, mmap.PAGESIZE)
    Objects().train_on(next(iter(Objects().loader)))  # imports what torch imports late, once for all forks
    reference_log = work / "reference.log"
    attempt(work / "reference", reference_log, ("none",), shared)
    import_what_forks_import(reference_log)
    _, lifetime = attempt(work / "again", work / "again.log", ("none",), shared)
    result: dict[str, Any] = {"seed": seed, "kills": 0, "runs": 0, "phases": {}, "problems": []}
    expected = {r["step"]: (r["loss"], r["state"]) for r in read_log(reference_log) if "step" in r}
    [last] = [r for r in read_log(reference_log) if "finished" in r]
    if len(expected) != 5 * EPOCHS:
        result["problems"].append("the reference run did not train to its end")
    while result["kills"] < kills_wanted and not result["problems"]:
        folder, log_path = work / f"run{result['runs']}", work / f"run{result['runs']}.log"
        result["runs"] += 1
        acknowledged, killed = 0, True
        for _ in range(60):
            before = len(read_log(log_path))
            plan = choose_plan(dice, lifetime) if result["kills"] < kills_wanted else ("none",)
            killed, lived = attempt(folder, log_path, plan, shared)
            records = read_log(log_path)[before:]
            context = f"run {result['runs'] - 1}, plan {plan}"
            for record in records:
                if "error" in record:
                    result["problems"].append(f"{context}: {record['error']}")
                if "resumed" in record and record["resumed"] < acknowledged:
                    result["problems"].append(
                        f"{context}: resumed {record['resumed']} after ack {acknowledged}"
                    )
                if "step" in record and (record["loss"], record["state"]) != expected[record["step"]]:
                    result["problems"].append(f"{context}: step {record['step']} differs")
                acknowledged = max(acknowledged, record.get("acknowledged", 0))
            if not killed:
                lifetime = 0.7 * lifetime + 0.3 * lived
                break
            result["kills"] += 1
            running = [name for i, name in enumerate(PHASES) if shared[i]] or ["between"]
            for name in running:
                result["phases"][name] = result["phases"].get(name, 0) + 1
            if result["problems"]:
                break
        finished = [r for r in read_log(log_path) if "finished" in r]
        if not result["problems"] and (killed or [(r["finished"], r["state"]) for r in finished[-1:]] != [
            (last["finished"], last["state"])
        ]):  # fmt: skip
            result["problems"].append(f"run {result['runs'] - 1} did not end as the reference did")
        if not result["problems"]:
            for left in work.glob(f"run{result['runs'] - 1}*"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
