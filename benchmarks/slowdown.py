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
AIM = 0.25
TRIALS = 3
GUESS = 8  # steps in a trial block
# A third of the usual state: a block is four times as long as its torch.save, and there are thirty of them.
LAYERS = 4
MEASURED = (Idle, TorchSaveSynced, DcpAsyncStaged, TorchCheckpointing, Holdfast)


def iterate(training: Training, contender: Contender) -> None:
    training.forward_backward()
    contender.step()
    training.optimizer.zero_grad()


def block(training: Training, contender: Contender, steps_per_save: int, number: int) -> float:
    """Seconds for one block with one save. It has finished when the block ends: no cost is left to a
    neighbour."""
    begin = time.perf_counter()
    for step in range(steps_per_save):
        iterate(training, contender)
        if step == 0:
            contender.save(number)
        else:
            contender.end_step()
    contender.finish()
    return time.perf_counter() - begin


def choose_interval(training: Training, contender: Contender, step: int) -> int:
    """Steps between saves so that this contender's saves take `AIM` of the training time.

    Its cost is measured inside blocks, as the real ones are: a save that is timed alone, over warm caches and
    with the cores to itself, is up to three times cheaper than one in the middle of training.
    """
    idle = Idle.without_folder(training)
    block(training, contender, GUESS, step)  # pays for buffers
    costs, steps = [], []
    for trial in range(1, TRIALS + 1):
        without = block(training, idle, GUESS, step)
        costs.append(block(training, contender, GUESS, step + trial) - without)
        steps.append(without / GUESS)
        contender.clear()
    return max(2, round(statistics.median(costs) / statistics.median(steps) / AIM))


def main() -> None:
    options = parse_options(__doc__, repeats=5)
    training = gpt_training(options.quick, batch=1, layers=LAYERS)
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
                step += 1
                contender.clear()
                if round_:  # the first one pays for buffers and processes
                    seconds[contender.name].append(took)
        for contender in contenders:
            contender.close()
    board.notes.append(f"a save every {steps_per_save} steps, the first of them in every block")
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
