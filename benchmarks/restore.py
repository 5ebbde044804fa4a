"""How fast a saved state is back in an existing model and optimizer, from a cold page cache.

A value is spoiled before every load and checked after it: a load that did not happen cannot win.
"""

from __future__ import annotations

import time
from collections import defaultdict

import torch

from contenders import Contender, DcpSave, Holdfast, Safetensors, TorchCheckpointing, TorchSave, everyone
from options import parse_options, scratch
from raw_limits import aligned, direct_read, direct_write, forget_pages, untouched
from scoreboard import Scoreboard
from workload import Training, gpt_training

RAW = "raw O_DIRECT read"
RAW_PARALLEL = "raw O_DIRECT read, 2 threads"
RAW_NEW = "raw O_DIRECT read, 2 threads, new memory"
SPEED = "restored, cold cache"
# With or without fsync the file is the same, and so it is for blocking and asynchronous DCP.
MEASURED = (TorchSave, Safetensors, DcpSave, TorchCheckpointing, Holdfast)


def timed_load(contender: Contender) -> float:
    training = contender.training
    expected = fingerprint(training)
    spoil(training)
    forget_pages(contender.files())
    begin = time.perf_counter()
    contender.load()
    seconds = time.perf_counter() - begin
    if fingerprint(training) != expected:
        raise RuntimeError(f"{contender.name} did not restore the state that it saved")
    return seconds


def fingerprint(training: Training) -> tuple[float, ...]:
    """Sums over all parameters and moments: any lost tensor changes one."""
    state = training.optimizer.state
    sums = [0.0, 0.0, 0.0]
    for parameter in training.model.parameters():
        sums[0] += parameter.detach().double().sum().item()
        sums[1] += state[parameter]["exp_avg"].double().sum().item()
        sums[2] += state[parameter]["exp_avg_sq"].double().sum().item()
    return tuple(sums)


def spoil(training: Training) -> None:
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.add_(1.0)
            training.optimizer.state[parameter]["exp_avg"].add_(1.0)
            training.optimizer.state[parameter]["exp_avg_sq"].add_(1.0)


def main() -> None:
    options = parse_options(__doc__)
    training = gpt_training(options.quick)
    size = training.state_bytes
    board = Scoreboard("restore", f"Restore of {size / 1e9:.2f} GB, cold cache", options)
    buffer = aligned(size)
    samples: dict[str, list[float]] = defaultdict(list)
    with scratch(options) as folder:
        direct_write(folder / "raw", buffer, keep=True)
        contenders = everyone(training, folder, MEASURED)
        for contender in contenders:
            contender.save(1)
            contender.finish()
        for round_ in range(options.repeats + 1):
            found = {
                RAW: direct_read(folder / "raw", buffer),
                RAW_PARALLEL: direct_read(folder / "raw", buffer, threads=2),
                RAW_NEW: direct_read(folder / "raw", untouched(size), threads=2),
            }
            turn = round_ % len(contenders)
            for contender in contenders[turn:] + contenders[:turn]:
                found[contender.name] = timed_load(contender)
            if round_:
                for name, seconds in found.items():
                    samples[name].append(size / seconds)
        for contender in contenders:
            contender.close()
    for name, speeds in samples.items():
        board.add(name, SPEED, "B/s", speeds)
    judge(board)
    board.finish()


def judge(board: Scoreboard) -> None:
    raw = max(board.median(RAW, SPEED), board.median(RAW_PARALLEL, SPEED))
    ours = board.median("holdfast", SPEED)
    by_hand = board.median(TorchSave.name, SPEED)
    board.at_least("verified restore against the best raw O_DIRECT read", ours / raw, 0.8)
    board.at_least("verified restore against torch.load + load_state_dict", ours / by_hand, 1.0)
    # Nobody restores into memory that is already there: a process that starts must be given it first.
    share = ours / board.median(RAW_NEW, SPEED)
    board.notes.append(f"against a raw read into new memory, holdfast reaches {share:.0%}")


if __name__ == "__main__":
    main()
