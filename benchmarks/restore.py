"""How fast a saved state is back in an existing model and optimizer, in a new process, from a cold cache.

A restart is a new process, so every load gets one, with a training of its own. A value is spoiled before the
load and all are compared after it: a load that did not happen cannot win.
"""

from __future__ import annotations

import mmap
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from contenders import Contender, DcpSave, Holdfast, Safetensors, TorchCheckpointing, TorchSave, everyone
from options import Options, parse_options, scratch
from raw_limits import aligned, direct_read, direct_write, forget_pages, untouched
from scoreboard import Scoreboard
from workload import Training, gpt_training

RAW = "raw O_DIRECT read, 2 threads, new memory"
RAW_WARM = "raw O_DIRECT read, 2 threads, memory already there"
SPEED = "restored, cold cache"
# With or without fsync the file is the same, and so it is for blocking and asynchronous DCP.
MEASURED: tuple[type[Contender], ...] = (TorchSave, Safetensors, DcpSave, TorchCheckpointing, Holdfast)
LIMIT = 300.0
Sums = tuple[float, ...]


def in_new_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Run `work` in a process that has imported torch and done nothing else."""
    # Forked from this one, which imports torch as well and computes nothing: it has no threads to lose.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        return pool.submit(work, *arguments).result(LIMIT)


def save_all(folder: Path, quick: bool) -> tuple[int, Sums, list[Path | None]]:
    """One checkpoint from everybody, and a raw file of the same size."""
    training = gpt_training(quick)
    contenders = everyone(training, folder, MEASURED)
    for contender in contenders:
        contender.save(1)
        contender.finish()
        contender.close()
    direct_write(folder / "raw", aligned(training.state_bytes), keep=True)
    return training.state_bytes, sums(training), [c.newest for c in contenders]


def load(which: int, folder: Path, newest: Path | None, expected: Sums, quick: bool) -> float:
    training = gpt_training(quick)
    spoil(training)
    contender = MEASURED[which].reopened(training, folder / MEASURED[which].__name__, newest)
    forget_pages(contender.files())
    give_back(2 * training.state_bytes)
    begin = time.perf_counter()
    contender.load()
    seconds = time.perf_counter() - begin
    if sums(training) != expected:
        raise RuntimeError(f"{contender.name} did not restore the state that it saved")
    contender.after_loading()
    return seconds


def raw_read(folder: Path, size: int, warm: bool) -> float:
    if warm:
        return direct_read(folder / "raw", aligned(size), threads=2)
    give_back(2 * size)
    return direct_read(folder / "raw", untouched(size), threads=2)


def give_back(size: int) -> None:
    """Take memory and return it, as the process that ended a moment ago did.

    A virtual machine may have to ask its host for memory that nobody has used lately, which takes up to ten
    times longer than the read that is measured, and strikes whoever comes first.
    """
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for start in range(0, size, mmap.PAGESIZE):
            memory[start] = 1


def sums(training: Training) -> Sums:
    """Over all parameters and moments: any lost tensor changes one."""
    state = training.optimizer.state
    found = [0.0, 0.0, 0.0]
    for parameter in training.model.parameters():
        found[0] += parameter.detach().double().sum().item()
        found[1] += state[parameter]["exp_avg"].double().sum().item()
        found[2] += state[parameter]["exp_avg_sq"].double().sum().item()
    return tuple(found)


def spoil(training: Training) -> None:
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.add_(1.0)
            training.optimizer.state[parameter]["exp_avg"].add_(1.0)
            training.optimizer.state[parameter]["exp_avg_sq"].add_(1.0)


def measure(options: Options, folder: Path) -> tuple[int, dict[str, list[float]]]:
    size, expected, newest = in_new_process(save_all, folder, options.quick)
    turns: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
        (RAW, raw_read, (folder, size, False)),
        (RAW_WARM, raw_read, (folder, size, True)),
    ]
    for which, kind in enumerate(MEASURED):
        turns.append((kind.name, load, (which, folder, newest[which], expected, options.quick)))
    seconds: dict[str, list[float]] = defaultdict(list)
    for round_ in range(options.repeats):
        turn = round_ % len(turns)
        for name, work, arguments in turns[turn:] + turns[:turn]:
            seconds[name].append(in_new_process(work, *arguments))
    return size, seconds


def main() -> None:
    options = parse_options(__doc__, repeats=5)
    with scratch(options) as folder:
        size, seconds = measure(options, folder)
    board = Scoreboard("restore", f"Restore of {size / 1e9:.2f} GB in a new process, cold cache", options)
    for name, took in seconds.items():
        board.add(name, SPEED, "B/s", [size / one for one in took])
    judge(board)
    board.finish()


def judge(board: Scoreboard) -> None:
    ours = board.median(Holdfast.name, SPEED)
    by_hand = board.median(TorchSave.name, SPEED)
    board.at_least("verified restore against a raw O_DIRECT read", ours / board.median(RAW, SPEED), 0.8)
    board.at_least("verified restore against torch.load + load_state_dict", ours / by_hand, 1.0)
    # Nobody restores into memory that is already there: a process that starts must be given it first.
    share = ours / board.median(RAW_WARM, SPEED)
    board.notes.append(f"against a raw read into memory that is already there, holdfast reaches {share:.0%}")


if __name__ == "__main__":
    main()
