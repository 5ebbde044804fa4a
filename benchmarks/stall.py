"""What one save takes from the training thread: the call itself, plus the wait before the next update.

Every contender saves the same training in turn, round after round, and finishes before the next one starts.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from contenders import (
    Contender,
    DcpAsync,
    DcpAsyncCached,
    DcpAsyncStaged,
    Holdfast,
    TorchCheckpointing,
    TorchSave,
    TorchSaveSynced,
    everyone,
)
from options import parse_options, scratch
from scoreboard import Scoreboard
from workload import Training, gpt_training

DCP = (DcpAsync, DcpAsyncCached, DcpAsyncStaged)
# Of those that block, only what is judged: the others are as slow, and a round of them takes half a minute.
MEASURED = (TorchSave, TorchSaveSynced, *DCP, TorchCheckpointing, Holdfast)


def iteration(training: Training, contender: Contender) -> tuple[float, float]:
    """One training step without a save: seconds in all, and seconds waited before the update."""
    begin = time.perf_counter()
    training.forward_backward()
    waited = contender.step()
    training.optimizer.zero_grad()
    return time.perf_counter() - begin, waited


def one_save(training: Training, contender: Contender, step: int) -> dict[str, float]:
    contender.end_step()  # whatever is only done now and then, such as a heartbeat, is done here
    plain, _ = iteration(training, contender)
    idle = timed(contender.end_step)
    iteration(training, contender)
    call = timed(lambda: contender.save(step)) - idle
    behind, waited = iteration(training, contender)
    contender.finish()
    # Hearing that the save has ended is part of what it costs.
    settling = max(timed(contender.end_step) - idle, 0.0)
    contender.clear()
    return {
        "stall": call + waited + settling,
        "call": call,
        "wait before the update": waited,
        "next step, longer by": behind - waited - plain,
        "stall and slower next step": call + settling + behind - plain,
        "a step's end without a save": idle,
    }


def timed(action: Callable[[], None]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def measure(
    training: Training, contenders: list[Contender], repeats: int
) -> dict[str, dict[str, list[float]]]:
    samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for round_ in range(repeats + 1):
        # Another order each round, so that nobody always follows the same neighbour.
        turn = round_ % len(contenders)
        for contender in contenders[turn:] + contenders[:turn]:
            found = one_save(training, contender, step=round_ + 1)
            if round_ == 0:
                samples[contender.name]["first stall"].append(found["stall"])
                continue
            for metric, value in found.items():
                samples[contender.name][metric].append(value)
    return samples


def main() -> None:
    options = parse_options(__doc__, repeats=5)
    training = gpt_training(options.quick, batch=1)
    board = Scoreboard("stall", f"Stall per save, state of {training.state_bytes / 1e9:.2f} GB", options)
    with scratch(options) as folder:
        contenders = everyone(training, folder, MEASURED)
        samples = measure(training, contenders, options.repeats)
        for contender in contenders:
            contender.close()
    for name, metrics in samples.items():
        for metric, values in metrics.items():
            board.add(name, metric, "s", values)
    judge(board, [c.name for c in contenders if c.asynchronous and c.name != Holdfast.name])
    board.finish()


def judge(board: Scoreboard, asynchronous: list[str]) -> None:
    ours = board.median(Holdfast.name, "stall")
    for name in (TorchSave.name, TorchSaveSynced.name):
        board.at_most(f"holdfast's stall against {name}", ours / board.median(name, "stall"), 1 / 100)
    best = min((kind.name for kind in DCP), key=lambda name: board.median(name, "stall"))
    for name in (best, TorchCheckpointing.name):
        board.at_most(f"holdfast's stall against {name}", ours / board.median(name, "stall"), 1 / 10)
    # A peer whose call returns at once may still slow the step behind it: that is lost time as well.
    lost = {name: board.median(name, "stall and slower next step") for name in [*asynchronous, Holdfast.name]}
    least = min(asynchronous, key=lambda name: lost[name])
    board.notes.append(
        f"with what the next step loses, holdfast takes {lost[Holdfast.name] * 1e3:.0f} ms "
        f"and the best of the others, {least}, {lost[least] * 1e3:.0f} ms"
    )


if __name__ == "__main__":
    main()
