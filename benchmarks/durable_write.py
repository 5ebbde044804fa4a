"""How fast a state becomes durable: from the call until the files are whole on stable storage.

Nothing trains meanwhile, so the disk, the digest and the serialisation are what is compared.
"""

from __future__ import annotations

import time
from collections import defaultdict

from contenders import CONTENDERS, DcpAsync, TorchSave, TorchSaveSynced, everyone
from options import parse_options, scratch
from raw_limits import aligned, direct_write
from scoreboard import Scoreboard
from workload import gpt_training

RAW = "raw O_DIRECT + fsync"
RAW_PARALLEL = "raw O_DIRECT + fsync, 2 threads"
# torch.save alone does not take part: it is not durable.
SPEED = "durable, call to completion"


def main() -> None:
    options = parse_options(__doc__)
    training = gpt_training(options.quick)
    size = training.state_bytes
    board = Scoreboard("durable_write", f"Durable write of {size / 1e9:.2f} GB", options)
    image = aligned(size)
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    with scratch(options) as folder:
        contenders = everyone(training, folder, tuple(k for k in CONTENDERS if k is not TorchSave))
        for round_ in range(options.repeats + 1):
            found: dict[tuple[str, str], float] = {
                (RAW, SPEED): size / direct_write(folder / "raw", image),
                (RAW_PARALLEL, SPEED): size / direct_write(folder / "raw", image, threads=2),
            }
            # Every round saves another state: equal ones would let a clever writer skip the work.
            training.forward_backward()
            training.optimizer.step()
            turn = round_ % len(contenders)
            for contender in contenders[turn:] + contenders[:turn]:
                begin = time.perf_counter()
                contender.save(round_ + 1)
                contender.finish()
                found[contender.name, SPEED] = size / (time.perf_counter() - begin)
                if contender.write_seconds is not None:
                    found[contender.name, "write phase alone"] = size / contender.write_seconds
                contender.clear()
            if round_:  # the first one pays for buffers and processes
                for key, speed in found.items():
                    samples[key].append(speed)
        for contender in contenders:
            contender.close()
    for (name, metric), speeds in samples.items():
        board.add(name, metric, "B/s", speeds)
    judge(board)
    board.finish()


def judge(board: Scoreboard) -> None:
    raw = max(board.median(RAW, SPEED), board.median(RAW_PARALLEL, SPEED))
    whole = board.median("holdfast", SPEED)
    write = board.median("holdfast", "write phase alone")
    async_peers = [kind.name for kind in (DcpAsync, *DcpAsync.__subclasses__())]
    best_async = max(board.median(name, SPEED) for name in async_peers)
    board.at_least("digested write against the best raw O_DIRECT", write / raw, 0.9)
    board.at_least(
        "holdfast against torch.save + fsync", whole / board.median(TorchSaveSynced.name, SPEED), 1.5
    )
    board.at_least("holdfast against the best dcp.async_save", whole / best_async, 2.0)
    board.notes.append(f"with the copy and the commit, holdfast reaches {whole / raw:.0%} of raw O_DIRECT")


if __name__ == "__main__":
    main()
