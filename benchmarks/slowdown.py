"""What saving often costs a training that keeps every core busy: blocks with and without, in turn.

The copy, the digest and the write compete with training for the same cores here, so nothing can hide.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict

from contenders import (
    Contender,
    DcpAsyncStaged,
    Holdfast,
    Idle,
    TorchCheckpointing,
    TorchSaveSynced,
    everyone,
)
from options import parse_options, scratch
from scoreboard import Scoreboard
from workload import Training, gpt_training

# torch.save at these steps must cost over 20%; aim above it, so that noise does not fall below.
AIM = 0.27
SAVES_PER_BLOCK = 2
MEASURED = (Idle, TorchSaveSynced, DcpAsyncStaged, TorchCheckpointing, Holdfast)


def iterate(training: Training, contender: Contender) -> None:
    training.forward_backward()
    contender.step()
    training.optimizer.zero_grad()


def block(training: Training, contender: Contender, steps_per_save: int, first_step: int) -> float:
    """Seconds for one block. Every save in it has finished when it ends: no cost is left to a neighbour."""
    begin = time.perf_counter()
    for save in range(SAVES_PER_BLOCK):
        for step in range(steps_per_save):
            iterate(training, contender)
            if step == 0:
                contender.save(first_step + save)
            else:
                contender.end_step()
    contender.finish()
    return time.perf_counter() - begin


def choose_interval(training: Training, contender: Contender, step: int) -> int:
    """Steps between saves so that this contender's saves take `AIM` of the training time."""
    idle = Idle.without_folder(training)
    for _ in range(2):
        iterate(training, idle)
    begin = time.perf_counter()
    for _ in range(4):
        iterate(training, idle)
    per_step = (time.perf_counter() - begin) / 4
    costs = []
    for number in range(3):
        begin = time.perf_counter()
        contender.save(step + number)
        contender.finish()
        costs.append(time.perf_counter() - begin)
        contender.clear()
    return max(1, round(statistics.median(costs) / per_step / AIM))


def main() -> None:
    options = parse_options(__doc__)
    training = gpt_training(options.quick, batch=1)
    board = Scoreboard(
        "slowdown", f"Slowdown of training, state of {training.state_bytes / 1e9:.2f} GB", options
    )
    seconds: dict[str, list[float]] = defaultdict(list)
    with scratch(options) as folder:
        contenders = everyone(training, folder, MEASURED)
        reference = next(c for c in contenders if c.name == TorchSaveSynced.name)
        steps_per_save = choose_interval(training, reference, step=1)
        step = 10
        for round_ in range(options.repeats + 1):
            turn = round_ % len(contenders)
            for contender in contenders[turn:] + contenders[:turn]:
                took = block(training, contender, steps_per_save, step)
                step += SAVES_PER_BLOCK
                contender.clear()
                if round_:  # the first one pays for buffers and processes
                    seconds[contender.name].append(took)
        for contender in contenders:
            contender.close()
    board.notes.append(f"a save every {steps_per_save} steps, {SAVES_PER_BLOCK} per block")
    board.add(Idle.name, "block", "s", seconds[Idle.name])
    for name, took in seconds.items():
        if name != Idle.name:
            pairs = zip(took, seconds[Idle.name], strict=True)
            board.add(
                name, "slower than without saves", "%", [100 * (mine / none - 1) for mine, none in pairs]
            )
    judge(board)
    board.finish()


def judge(board: Scoreboard) -> None:
    metric = "slower than without saves"
    by_hand, ours = board.median(TorchSaveSynced.name, metric), board.median("holdfast", metric)
    board.at_least("torch.save + fsync at the same steps costs", by_hand, 20, "%")
    board.at_most("holdfast slows training by", ours, 5, "%")
    share = max(ours, 0.0) / by_hand if by_hand > 0 else math.inf  # noise swallowed what is compared
    board.at_most("holdfast's slowdown against torch.save's", share, 1 / 5)


if __name__ == "__main__":
    main()
