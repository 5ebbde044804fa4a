"""The costs that do not shrink with the state: a step without a save, and a save of very many tensors.

Here the bytes are few, so what is measured is bookkeeping and nothing else.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from contenders import DcpAsyncStaged, Holdfast, TorchSaveSynced, everyone
from options import parse_options, scratch
from scoreboard import Scoreboard
from stall import measure
from workload import many_small_tensors

TENSORS = 12_000
# torch_checkpointing is missing: it shares each tensor through file descriptors of its own and fails with
# "too many open files" at this count, even where 20,000 are allowed.
MEASURED = (TorchSaveSynced, DcpAsyncStaged, Holdfast)


def end_step_costs(folder: Path, steps: int) -> list[float]:
    """Seconds of each `end_step` that decides not to save, loss given, in a loop that really steps."""
    training = many_small_tensors(16)
    contender = Holdfast(training, folder)
    costs = []
    for _ in range(steps):
        loss = training.forward_backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        begin = time.perf_counter()
        contender.run.end_step(loss=loss)
        costs.append(time.perf_counter() - begin)
    contender.close()
    return costs[steps // 10 :]  # the first ones warm caches and branch predictors


def main() -> None:
    options = parse_options(__doc__)
    board = Scoreboard("small_costs", "Costs that do not depend on the bytes", options)
    with scratch(options) as folder:
        medians, tails = [], []
        for number in range(options.repeats):
            costs = end_step_costs(folder / f"steps-{number}", 500 if options.quick else 3000)
            medians.append(statistics.median(costs))
            tails.append(statistics.quantiles(costs, n=100)[-1])
        board.add("holdfast", "end_step without a save, median", "s", medians)
        board.add("holdfast", "end_step without a save, 99th percentile", "s", tails)
        training = many_small_tensors(TENSORS)
        contenders = everyone(training, folder, MEASURED)
        samples = measure(training, contenders, options.repeats)
        for contender in contenders:
            contender.close()
    for name, metrics in samples.items():
        for metric in ("first stall", "stall", "next step, longer by"):
            board.add(name, f"{TENSORS} tensors: {metric}", "s", metrics[metric])
    board.at_most("end_step without a save", statistics.median(medians), 50e-6, "s")
    board.at_most(
        f"stall of a save of {TENSORS} tensors after the first",
        board.median("holdfast", f"{TENSORS} tensors: stall"),
        50e-3,
        "s",
    )
    board.finish()


if __name__ == "__main__":
    main()
