"""A small training killed at random, at least fifty times: what is lost must be what the model predicts.

Kills strike by a Poisson process (SIGKILL, no warning). The policy starts from an MTBF five times wrong and
has to learn costs and rate across its deaths. The prediction is the closed form with the true MTBF and with
what a save really cost: how much longer the steps beside it took, measured here and not by the policy.
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

MTBF = 3.5  # seconds: a day of a large cluster in a minute
BUDGET = 0.05
LIMIT_SECONDS = 60.0  # for a life to begin
WARM_UP_STEPS = 3  # of every life: first-touch and allocators

(
    RESUMED,
    STEP,
    BEGUN,
    SAVES,
    STALL,
    PERSIST,
    QUIET,
    QUIET_STEPS,
    FIRST,
    FIRST_STEPS,
    BUSY,
    BUSY_STEPS,
    REACHED,
) = range(13)
REMEMBERED = 1 << 16  # steps of which the time is kept, behind the numbers above


@dataclass(frozen=True)
class Life:
    """One process from its first step to its death.

    `quiet`, `first` and `busy` are (seconds, steps): without a save, beside the first one, beside later ones.
    `waits` are how long a save held the training thread, and how long until it was durable.
    """

    resumed_at: int
    died_at: int
    lost_before: float | None  # seconds of work that the death before this life cost
    seconds: float
    saves: int
    quiet: tuple[float, int]
    first: tuple[float, int]
    busy: tuple[float, int]
    waits: tuple[float, float]


def train(folder: Path, shared: ctypes.Array[ctypes.c_double]) -> None:
    """Runs in the child until it is killed. Writes its position to shared memory at every step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(64, 512)
    with Run(folder, mtbf=5 * MTBF, budget=BUDGET, model=model, optimizer=optimizer) as run:
        shared[RESUMED] = run.step
        policy, last = run.policy, time.monotonic()
        for _ in run.steps(10**9):
            beside = policy.save_pending
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            run.end_step()
            now = time.monotonic()
            if run.step > shared[RESUMED] + WARM_UP_STEPS:
                kind = QUIET
                if beside or policy.save_pending:
                    kind = FIRST if policy.saves_started == 1 else BUSY
                shared[kind] += now - last
                shared[kind + 1] += 1
            last = now
            if policy.saves_started > shared[SAVES]:
                shared[SAVES] = policy.saves_started
                shared[STALL] = policy.profile.stall_seconds or 0.0
                shared[PERSIST] = policy.profile.persist_seconds or 0.0
            shared[REACHED + run.step % REMEMBERED] = now
            shared[STEP] = run.step
            shared[BEGUN] = 1.0


def one_life(folder: Path, lifetime: float, shared: ctypes.Array[ctypes.c_double]) -> Life:
    reached = list(shared[REACHED:])
    last, resumed_last = int(shared[STEP]), int(shared[RESUMED])
    for number in (BEGUN, SAVES, QUIET, QUIET_STEPS, FIRST, FIRST_STEPS, BUSY, BUSY_STEPS):
        shared[number] = 0.0
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
    return Life(
        resumed_at=resumed,
        died_at=int(shared[STEP]),
        lost_before=lost,
        seconds=seconds,
        saves=int(shared[SAVES]),
        quiet=(shared[QUIET], int(shared[QUIET_STEPS])),
        first=(shared[FIRST], int(shared[FIRST_STEPS])),
        busy=(shared[BUSY], int(shared[BUSY_STEPS])),
        waits=(shared[STALL], shared[PERSIST]),
    )


@dataclass(frozen=True)
class Costs:
    """Of one save, in seconds: all it took from training, its stall, and until it was durable.

    `first` is what the first one of a process costs: it allocates what the others use.
    """

    first: float
    cost: float
    stall: float
    persist: float
    step: float


def costs_of(lives: list[Life]) -> Costs:
    first, extra, saves, steps = [], 0.0, 0, []
    for life in lives:
        if life.saves and life.quiet[1]:
            usual = life.quiet[0] / life.quiet[1]  # of the same life: the machine has slow minutes
            first.append(life.first[0] - life.first[1] * usual)
            extra += life.busy[0] - life.busy[1] * usual
            saves += life.saves - 1
            steps.append(usual)
    stalls, persists = zip(*(life.waits for life in lives if life.saves), strict=True)
    return Costs(
        first=statistics.fmean(first),
        cost=extra / saves,
        stall=statistics.median(stalls),
        persist=statistics.median(persists),
        step=statistics.median(steps),
    )


def predict(mtbf: float, of: Costs) -> tuple[float, float]:
    """Work lost by one kill, and the share of time that saves take, exactly by renewal, for these costs."""
    # Saves are taken at whole steps, so half a step late on average. The gap is wall time.
    interval = max(exact(of.cost, mtbf), of.persist, of.cost / BUDGET + of.cost - of.stall) + of.step / 2
    begun = 1 / math.expm1((interval + of.stall) / mtbf)
    durable = begun * math.exp(-(of.persist + of.stall) / mtbf)
    paid = of.cost * begun + (of.first - of.cost) * math.exp(-interval / mtbf)
    return mtbf - of.stall * begun - interval * durable, paid / mtbf


def main() -> None:
    options = parse_options(__doc__, repeats=60)
    kills = 6 if options.quick else options.repeats
    board = Scoreboard("failure_injection", f"{kills} kills by a Poisson process, one in {MTBF:g} s", options)
    rng = random.Random(1)
    shared = RawArray(ctypes.c_double, REACHED + REMEMBERED)
    lives: list[Life] = []
    with scratch(options) as folder:
        torch.optim.AdamW([nn.Parameter(torch.zeros(1))])  # imports for two seconds: here, not in every child
        for number in range(kills + 1):
            lives.append(one_life(folder / "run", rng.expovariate(1 / MTBF), shared))
            if number % 10 == 0:
                life = lives[-1]
                print(f"  life {number}: resumed at {life.resumed_at}, died at {life.died_at}", flush=True)
    up = sum(life.seconds for life in lives)
    mtbf = up / len(lives)  # as it was, not as it was meant: a few dozen draws differ
    costs = costs_of(lives)
    predicted_rework, predicted_stall = predict(mtbf, costs)
    rework = [life.lost_before for life in lives if life.lost_before is not None]
    saves = sum(life.saves for life in lives)
    begun = sum(1 for life in lives if life.saves)
    measured_stall = (costs.cost * (saves - begun) + costs.first * begun) / up
    board.add("measured", "work lost by one kill", "s", rework)
    board.add("predicted", "work lost by one kill", "s", [predicted_rework])
    board.add("measured", "time that saves take", "%", [100 * measured_stall])
    board.add("predicted", "time that saves take", "%", [100 * predicted_stall])
    board.at_least("kills", float(len(rework)), 50.0, "x")
    board.at_most(
        "rework off the prediction by", 100 * abs(statistics.fmean(rework) / predicted_rework - 1), 20.0, "%"
    )
    board.at_most(
        "stall, slower steps included, off the prediction by",
        100 * abs(measured_stall / predicted_stall - 1),
        20.0,
        "%",
    )
    board.notes.append(
        f"work lost {statistics.fmean(rework):.3f} s, predicted {predicted_rework:.3f} s; {saves} saves; "
        f"one costs {1e3 * costs.cost:.1f} ms, {1e3 * costs.stall:.1f} ms of it stall, the first one of a "
        f"process {1e3 * costs.first:.0f} ms; durable after "
        f"{1e3 * costs.persist:.0f} ms; step {1e3 * costs.step:.1f} ms; one kill in {mtbf:.2f} s"
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
