"""A training that is killed every ten epochs: restart from the shared store, or from what the nodes kept.

Root: rank 0 reads the last checkpoint over a wire of 200 MB/s and sends it to all. holdfast: every node
restores from its own folder, and from the others what it did not write. Measured from the moment at which all
processes have made their model until the last one can take its first step; and until all have done it. The
loss of every step is compared with that of a training never disturbed.
"""

from __future__ import annotations

import os
from itertools import islice

os.environ |= {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
# torch asks for the name of every peer; one question that a name server drops would cost 5 s.
os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"

from killed_training import EPOCHS_BETWEEN, Attempt, Told, train_and_kill
from levels_training import Size
from options import Options, parse_options, scratch
from scoreboard import Scoreboard
from series_plot import Panel, Series, lines

NONE, ROOT, OURS = "never disturbed", "root restart", "holdfast, cached restart"
WAYS = {NONE: Attempt.undisturbed, ROOT: Attempt.with_root, OURS: Attempt.with_caches}
READY = "ready for the first step"
SHOWN = 4


def main() -> None:
    options = parse_options(__doc__, repeats=1)
    worlds, size, epochs = (1, 2, 4), Size(10, 0.0, steps_of_one_node=4), 3 * EPOCHS_BETWEEN
    if options.quick:
        worlds, size, epochs = (1, 2), Size(2, 0.0, steps_of_one_node=4), 2 * EPOCHS_BETWEEN
    found: dict[int, dict[str, Told]] = {}
    for world in worlds:
        with scratch(options) as folder:
            found[world] = {
                who: train_and_kill(way, world, size, folder / str(number), epochs)
                for number, (who, way) in enumerate(WAYS.items())
            }
    report(found, size, options)


def report(found: dict[int, dict[str, Told]], size: Size, options: Options) -> None:
    title = f"Restart every {EPOCHS_BETWEEN} epochs, {size.state_bytes / 1e6:.0f} MB"
    board = Scoreboard("multi_level_restart", title, options)
    for world, told in found.items():
        for who in (ROOT, OURS):
            board.add(names(world, who), READY, "s", told[who].ready_seconds)
            board.add(names(world, who), "first step done", "s", told[who].step_seconds)
            read = [float(count) for count in told[who].restart_bytes]
            board.add(names(world, who), "read from the shared store", "B", read)
        steps = say_logs(told, names(world, OURS))
        board.at_most(f"{names(world, OURS)}: steps whose logged loss differs", float(steps), 0.0, "")
    from_shared = max(count for told in found.values() for count in told[OURS].restart_bytes)
    board.at_most("bytes that cached restarts read from the shared store", float(from_shared), 0.0, "B")
    # Where nodes outnumber the cores, what they do side by side elsewhere is done here in turn.
    for world in [world for world in found if world <= (os.cpu_count() or 1)]:
        ours, root = (board.median(names(world, who), READY) for who in (OURS, ROOT))
        board.at_most(f"{names(world, OURS)}, against root restart", ours / root, 1.0)
    largest = max(found)
    if differing(found[largest][NONE], found[largest][ROOT]):
        board.notes.append(
            "root restarts change the log: rank 0 saves its random stream, and the others begin theirs anew"
        )
    board.finish()
    draw(board, found, options)


def names(world: int, who: str) -> str:
    return f"{world} node{'s' if world > 1 else ''}: {who}"


def differing(undisturbed: Told, other: Told) -> list[int]:
    """Steps that are missing, or whose loss was not the same to the last digit every time."""
    return [
        step
        for step, (loss,) in undisturbed.losses.items()
        if any(again != loss for again in other.losses.get(step, ["missing"]))
    ]


def say_logs(told: dict[str, Told], title: str) -> int:
    wrong = differing(told[NONE], told[OURS])
    again = sum(len(times) - 1 for times in told[OURS].losses.values())
    print(f"\n{title}: {len(told[NONE].losses)} steps, {again} of them done again after a kill")
    for step, (loss,) in islice(told[NONE].losses.items(), SHOWN):
        print(f"  step {step}: {loss} undisturbed, {' and '.join(told[OURS].losses[step])} with restarts")
    print("  logs are equal to the last digit" if not wrong else f"  logs differ at steps {wrong}")
    return len(wrong)


def draw(board: Scoreboard, found: dict[int, dict[str, Told]], options: Options) -> None:
    series = [Series(who, [(n, board.median(names(n, who), READY)) for n in found]) for who in (ROOT, OURS)]
    panels = [Panel("from made models to the first step, seconds", series)]
    picture = lines(board.title, "nodes", panels, list(found))
    (options.out / f"{board.name}.svg").write_text(picture)
    largest = max(found)
    logs = {
        who: [(float(step), float(times[-1])) for step, times in sorted(found[largest][who].losses.items())]
        for who in (NONE, OURS)
    }
    curves = [Series(NONE, logs[NONE], broad=True, dots=False), Series(OURS, logs[OURS], dots=False)]
    end = len(logs[NONE])
    title = f"The same training with and without restarts, {largest} nodes"
    picture = lines(title, "step", [Panel("loss", curves)], [end * part / 4 for part in range(5)])
    (options.out / "multi_level_logs.svg").write_text(picture)


if __name__ == "__main__":
    main()
