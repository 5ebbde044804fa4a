"""A small training killed at random, at least fifty times: what is lost must be what the model predicts.

Kills strike by a Poisson process (SIGKILL, no warning). The policy starts from an MTBF five times wrong. The
prediction uses the closed form, the true MTBF, and the costs that the training itself measured.
"""

from __future__ import annotations

import ctypes
import math
import os
import random
import signal
import statistics
import sys
import time
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from pathlib import Path

import torch
from torch import nn

from holdfast.engine.run import Run  # loaded once here: the children are forks
from holdfast.policy.intervals import exact
from options import parse_options, scratch
from plots import Bar, bars
from scoreboard import Scoreboard

MTBF = 4.0  # seconds: a day of a large cluster in a minute
BUDGET = 0.05
LIMIT_SECONDS = 60.0  # for a life to begin

RESUMED, STEP, BEGUN, SAVES, STALL, COST, PERSIST, STEP_SECONDS, REACHED = range(9)
REMEMBERED = 1 << 16  # steps of which the time is kept, behind the numbers above


@dataclass(frozen=True)
class Life:
    """One process from its first step to its death."""

    resumed_at: int
    died_at: int
    lost_before: float | None  # seconds of work that the death before this life cost
    seconds: float
    stall: float


def train(folder: Path, shared: ctypes.Array[ctypes.c_double]) -> None:
    """Runs in the child until it is killed. Writes its position to shared memory at every step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(64, 512)
    with Run(folder, mtbf=5 * MTBF, budget=BUDGET, model=model, optimizer=optimizer) as run:
        shared[RESUMED] = run.step
        for _ in run.steps(10**9):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            run.end_step()
            if run.policy.saves_started > shared[SAVES]:
                shared[SAVES] = run.policy.saves_started
                profile = run.policy.profile
                shared[STALL] = profile.stall_seconds or 0.0
                shared[COST] = profile.cost_seconds or 0.0
                shared[PERSIST] = profile.persist_seconds or 0.0
                shared[STEP_SECONDS] = profile.step_seconds or 0.0
            shared[REACHED + run.step % REMEMBERED] = time.monotonic()
            shared[STEP] = run.step
            shared[BEGUN] = 1.0


def one_life(folder: Path, lifetime: float, shared: ctypes.Array[ctypes.c_double]) -> Life:
    shared[BEGUN] = shared[SAVES] = 0.0
    reached = list(shared[REACHED:])
    last, resumed_last = int(shared[STEP]), int(shared[RESUMED])
    child = os.fork()
    if child == 0:
        try:
            train(folder, shared)
        finally:
            os._exit(1)
    waited = time.monotonic()
    while not shared[BEGUN]:
        if time.monotonic() - waited > LIMIT_SECONDS or os.waitpid(child, os.WNOHANG)[0]:
            raise RuntimeError("the training did not begin")
        time.sleep(0.005)
    begun = time.monotonic()
    time.sleep(lifetime)
    os.kill(child, signal.SIGKILL)
    seconds = time.monotonic() - begun
    os.waitpid(child, 0)
    resumed = int(shared[RESUMED])
    # What a life repeats of the one before: from where it resumed to where that one died, as long as it took
    # then. One that resumed where the one before had begun lost all of it, from the first step it finished.
    lost = None
    if last:
        lost = reached[last % REMEMBERED] - reached[max(resumed, resumed_last + 1) % REMEMBERED]
    return Life(resumed, int(shared[STEP]), lost, seconds, shared[SAVES] * shared[STALL])


def predict(mtbf: float, stall: float, cost: float, persist: float, step: float) -> tuple[float, float]:
    """Work lost by one kill, and the share of time stalled, exactly by renewal, for these costs."""
    # Saves are taken at whole steps, so half a step late on average.
    interval = max(exact(cost, MTBF), persist, cost / BUDGET + cost - stall) + step / 2
    begun = 1 / math.expm1((interval + stall) / mtbf)
    durable = math.exp(-(persist + stall) / mtbf) / math.expm1((interval + stall) / mtbf)
    return mtbf - stall * begun - interval * durable, stall * begun / mtbf


def main() -> None:
    options = parse_options(__doc__, repeats=60)
    kills = 6 if options.quick else options.repeats
    board = Scoreboard("failure_injection", f"{kills} kills by a Poisson process, one in {MTBF:g} s", options)
    rng = random.Random(1)
    shared = RawArray(ctypes.c_double, REACHED + REMEMBERED)
    lives: list[Life] = []
    costs: list[tuple[float, ...]] = []
    with scratch(options) as folder:
        for number in range(kills + 1):
            lives.append(one_life(folder / "run", rng.expovariate(1 / MTBF), shared))
            if shared[SAVES]:
                costs.append((shared[STALL], shared[COST], shared[PERSIST], shared[STEP_SECONDS]))
            if number % 10 == 0:
                print(
                    f"  life {number}: resumed at {lives[-1].resumed_at}, died at {lives[-1].died_at}",
                    flush=True,
                )
    up = sum(life.seconds for life in lives)
    mtbf = up / len(lives)  # as it was, not as it was meant: a few dozen draws differ
    predictions = [predict(mtbf, *one) for one in costs]
    predicted_rework = statistics.fmean(rework for rework, _ in predictions)
    predicted_stall = statistics.fmean(stall for _, stall in predictions)
    rework = [life.lost_before for life in lives if life.lost_before is not None]
    measured_stall = sum(life.stall for life in lives) / up
    _, cost, persist, step = (statistics.median(column) for column in zip(*costs, strict=True))
    board.add("measured", "work lost by one kill", "s", rework)
    board.add("predicted", "work lost by one kill", "s", [predicted_rework])
    board.add("measured", "stall", "%", [100 * measured_stall])
    board.add("predicted", "stall", "%", [100 * predicted_stall])
    board.at_least("kills", float(len(rework)), 50.0, "x")
    board.at_most(
        "rework off the prediction by", 100 * abs(statistics.fmean(rework) / predicted_rework - 1), 20.0, "%"
    )
    board.at_most("stall off the prediction by", 100 * abs(measured_stall / predicted_stall - 1), 20.0, "%")
    board.notes.append(
        f"mean work lost {statistics.fmean(rework):.3f} s, predicted {predicted_rework:.3f} s; a save costs "
        f"{1e3 * cost:.1f} ms, is durable after {1e3 * persist:.0f} ms; step {1e3 * step:.1f} ms (medians)"
    )
    board.finish()
    options.out.mkdir(parents=True, exist_ok=True)
    data = [
        Bar("holdfast, measured", statistics.fmean(rework), f"{statistics.fmean(rework):.3f} s"),
        Bar("raw model", predicted_rework, f"{predicted_rework:.3f} s"),
    ]
    (options.out / "failure_injection.svg").write_text(bars("Work lost by one kill", "seconds", data))


if __name__ == "__main__":
    sys.exit(main())
