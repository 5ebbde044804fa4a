"""`holdfast plan`: what each way of saving would cost on a cluster, before renting it."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.cli.render import add_json_option
from holdfast.cli.result import Block, Result, Table
from holdfast.errors import SetupError
from holdfast.plan.failure_models import DAY, PRESETS, FailureModel, Poisson, Replayed, Weibull, preset
from holdfast.plan.forecast import Forecast, assumptions, drawing
from holdfast.plan.model import Job, Strategy, TierSpeed, parse_tiers, single
from holdfast.plan.monte_carlo import Outcome, simulate
from holdfast.plan.run_costs import RunCosts, read_run_costs
from holdfast.plan.strategies import LEARNING_SEEDS, OURS, compare, learned, ours, strategies
from holdfast.policy.intervals import goodput
from holdfast.units import format_bytes, format_seconds, parse_bytes, parse_seconds, parse_share

# Published are 3.5 to 24 failures per 1000 node-days; this is 12.
PUBLISHED_NODE_SECONDS = 2000 * 3600.0
DEFAULT_TIERS = ("partner", "file-system:200GB/s")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="compare checkpointing policies for a cluster: goodput, intervals, what is lost",
        description="Simulates the job under every policy, ours among them, and says where the time goes. "
        "With --simulate: under one policy, or with saves to the last tier at one interval, and the "
        "closed form beside it.",
        epilog="presets: " + "; ".join(f"{one.name} = {one.source}" for one in PRESETS.values()),
    )
    add = parser.add_argument
    add("--nodes", type=int, default=1)
    add("--gpus-per-node", type=int, default=8)
    add("--state", help='size of the whole training state, such as "1.4TB"')
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("--mtbf", help='mean time between failures of the whole job, such as "3 h"')
    rate.add_argument("--mtbf-node", help='the same of one node, such as "250d"')
    rate.add_argument("--preset", choices=sorted(PRESETS), help="a published failure rate")
    add("--tiers", nargs="+", metavar="TIER", help='nearest first: "partner:10GB/s/node" "/lustre:500GB/s"')
    add("--from", dest="run_folder", metavar="RUN", help="take the measured costs of this run")
    add("--stall", help="what a save takes from the training thread (default 2 s)")
    add("--interference", default="2%", help="slowdown until a save is durable")
    add("--restart", default="10 min", help="detect, reschedule and start, from the last tier")
    add("--restart-near", default="3 min", help="the same, from a nearer tier")
    add("--budget", default="3%", help="the most that saves may cost")
    add("--epoch", default="4 h", help="for the policy that saves at epoch ends")
    add("--fixed", default="1 h", help="for the policies with a fixed interval")
    add("--weibull", type=float, metavar="SHAPE", help="clustered failures, shape below 1")
    add("--trace", metavar="FILE", help="replay up-times: a JSON list of seconds")
    add("--days", type=float, default=90.0)
    add("--seeds", type=int, default=1000)
    add("--seed", type=int, default=0)
    add("--plot", metavar="OUT.svg", help="write the breakdown as a self-contained SVG")
    add("--gpu-hour-price", type=float, help="to show money lost per day")
    add("--simulate", action="store_true", help="one policy only: ours, or what the next three say")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--interval", help='save to the last tier this often, such as "10 min"')
    one.add_argument("--policy", help="a name from the table")
    add("--wrong-prior", type=float, help="start from an MTBF this many times off, and learn")
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Result:
    job, failures, facts = _job(options)
    if options.trace:
        failures = Replayed(_read_trace(options.trace))
    one = (options.interval, options.policy, options.wrong_prior)
    if options.simulate or any(given is not None for given in one):
        return _simulated(options, job, failures, facts)
    outcomes = compare(job, failures, horizon=options.days * DAY, seeds=options.seeds, seed=options.seed)
    forecast = Forecast(job, tuple(outcomes), (*facts, *assumptions(job)), options.gpu_hour_price)
    if options.plot:
        title = f"{job.gpus:,} GPUs, a failure every {format_seconds(job.mtbf)}: where the time goes"
        _write(Path(options.plot), drawing(title, outcomes))
    return Result(forecast.as_json(), _text(forecast))


def _text(forecast: Forecast) -> Iterator[Block]:
    """The assumptions, the table, and the recommendation in a sentence."""
    priced = forecast.gpu_hour_price is not None
    header = ["policy", "goodput", "p5", "p95", "stall", "slow", "rework", "restart", "interval", "saves/d",
              "bytes/d", "p99 loss", "GPU-h lost/d", *(["money lost/d"] if priced else [])]  # fmt: skip
    rows = []
    for one in forecast.outcomes:
        shares = [one.goodput, one.percentile(5), one.percentile(95)]
        shares += [one.breakdown[part] for part in ("stall", "slowdown", "rework", "restart")]
        money = forecast.money_lost_per_day(one)
        rows.append([
            one.name, *(f"{share:.4f}" for share in shares), _intervals(one), f"{one.saves_per_day:.3g}",
            format_bytes(one.bytes_per_day), format_seconds(one.loss_p99),
            f"{forecast.gpu_hours_lost_per_day(one):,.0f}", *([] if money is None else [f"{money:,.0f}"]),
        ])  # fmt: skip
    yield from ("Assumed:", *(f"  {line}" for line in forecast.assumptions), "")
    yield Table(header, rows, left=(0,))
    yield from ("", forecast.recommendation())


def _intervals(one: Outcome) -> str:
    return " / ".join(format_seconds(seconds) for seconds in one.intervals)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise SetupError(
            f"cannot write the plot to {path}: {error.strerror}", hint="give another path"
        ) from error


# ---- --simulate: one policy or interval


def _simulated(
    options: argparse.Namespace, job: Job, failures: FailureModel, facts: tuple[str, ...]
) -> Result:
    if options.plot or options.gpu_hour_price is not None:
        raise SetupError("--plot and --gpu-hour-price are for all policies", hint="leave out --simulate")
    horizon = options.days * DAY
    strategy = _strategy(options, job, horizon)
    outcome = simulate(strategy, failures, horizon=horizon, seeds=options.seeds, seed=options.seed)
    expected = unknowing = None
    if len(strategy.tiers) == 1 and not strategy.fall:
        # Daly's exact goodput: one tier, one interval.
        one = strategy.tiers[0]
        expected = goodput(outcome.intervals[0], one.cost, failures.mtbf, one.restart, one.persist)
    if strategy.name == OURS:
        few = min(options.seeds, LEARNING_SEEDS)
        unknowing = simulate(learned(job), failures, horizon=horizon, seeds=few, seed=options.seed)
    said = {
        "policy": outcome.name,
        "goodput": outcome.goodput,
        "standard_error": outcome.standard_error,
        "closed_form": expected,
        "goodput_not_knowing_the_rate": None if unknowing is None else unknowing.goodput,
        "breakdown": outcome.breakdown,
        "interval_seconds": list(outcome.intervals),
        "failures": float(outcome.failures.mean()),
        "saves_per_day": outcome.saves_per_day,
        "loss_p99_seconds": outcome.loss_p99,
        "facts": list(facts),
    }
    return Result(said, _simulated_text(outcome, expected, unknowing))


def _simulated_text(outcome: Outcome, expected: float | None, unknowing: Outcome | None) -> Iterator[Block]:
    parts = ", ".join(f"{name} {100 * share:.2f} %" for name, share in outcome.breakdown.items())
    yield f"{outcome.name}: goodput {outcome.goodput:.5f} ± {outcome.standard_error:.5f}"
    yield f"time: {parts}"
    lost = format_seconds(outcome.loss_p99)
    yield f"intervals {_intervals(outcome)}; {outcome.failures.mean():.1f} failures; p99 loss {lost}"
    if unknowing is not None:
        yield f"{unknowing.name}: goodput {unknowing.goodput:.5f} ± {unknowing.standard_error:.5f}"
    if expected is not None:
        yield f"closed form (constant rate): {expected:.5f}"


def _strategy(options: argparse.Namespace, job: Job, horizon: float) -> Strategy:
    if options.interval:
        seconds = parse_seconds(options.interval)
        return single(f"every {format_seconds(seconds)}", job.asynchronous(), seconds)
    if options.wrong_prior is not None:
        return learned(job, options.wrong_prior)
    if options.policy in (None, OURS):
        return ours(job)
    known = {one.name: one for one in strategies(job, horizon)}
    if options.policy not in known:
        names = ", ".join(f'"{name}"' for name in known)
        raise SetupError(f"there is no policy {options.policy!r} to simulate", hint=f"use one of {names}")
    return known[options.policy]


def _read_trace(path: str) -> tuple[float, ...]:
    try:
        with open(path, encoding="utf-8") as file:
            raw = json.load(file)
    except OSError as error:
        raise SetupError(f"cannot read the trace {path}: {error.strerror}", hint="check the path") from error
    except ValueError as error:
        raise SetupError(f"{path} is not JSON: {error}", hint="write a list of seconds") from error
    if not isinstance(raw, list) or not raw or not all(_is_duration(one) for one in raw):
        raise SetupError(f"{path} is not a list of up-times", hint="write a JSON list of positive seconds")
    return tuple(float(one) for one in raw)


def _is_duration(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


# ---- the job that the options describe


def _job(options: argparse.Namespace) -> tuple[Job, FailureModel, tuple[str, ...]]:
    """The job, its failures, and where the numbers come from."""
    if options.nodes < 1 or options.gpus_per_node < 1 or options.seeds < 1 or options.days <= 0:
        raise SetupError("nodes, GPUs, seeds and days must be positive", hint="check the numbers given")
    facts: list[str] = []
    costs = None
    if options.run_folder:
        costs = read_run_costs(options.run_folder)
        facts.append(f"measured in {options.run_folder}: {costs.saves} saves, {costs.failures} failures")
    mtbf = _mtbf(options, costs, facts)
    if options.state is None and costs is None:
        raise SetupError("how large is the training state?", hint='give --state "1.4TB", or --from a run')
    state = float(parse_bytes(options.state)) if options.state else costs.state_bytes if costs else 0.0
    scaled = state / costs.state_bytes if costs and costs.state_bytes else 1.0
    persist = None
    if options.tiers is None and costs is not None:
        speed = costs.state_bytes / max(costs.persist, 1e-9)
        tiers: tuple[TierSpeed, ...] = (TierSpeed(str(options.run_folder), speed, 1.0),)
        persist = costs.persist * scaled
    else:
        tiers = parse_tiers(options.tiers or DEFAULT_TIERS, options.nodes)
    job = Job(
        nodes=options.nodes,
        gpus_per_node=options.gpus_per_node,
        state_bytes=state,
        mtbf=mtbf,
        tiers=tiers,
        stall=parse_seconds(options.stall) if options.stall else costs.stall * scaled if costs else 2.0,
        interference=parse_share(options.interference),
        restart=parse_seconds(options.restart),
        restart_near=parse_seconds(options.restart_near),
        budget=parse_share(options.budget),
        epoch=parse_seconds(options.epoch),
        fixed=parse_seconds(options.fixed),
        persist=persist,
    )
    failures: FailureModel = Poisson(mtbf) if options.weibull is None else Weibull(mtbf, options.weibull)
    return job, failures, tuple(facts)


def _mtbf(options: argparse.Namespace, costs: RunCosts | None, facts: list[str]) -> float:
    if options.mtbf:
        value = parse_seconds(options.mtbf)
    elif options.mtbf_node:
        value = parse_seconds(options.mtbf_node) / options.nodes
    elif options.preset:
        chosen = preset(options.preset)
        facts.append(f"failure rate: {chosen.per_1000_node_days:g} per 1000 node-days; {chosen.source}")
        value = chosen.node_mtbf / options.nodes
    elif costs is not None and costs.mtbf is not None:
        value = costs.mtbf
    else:
        facts.append("failure rate: one per node in 2,000 h, the pessimistic side of what is published")
        value = PUBLISHED_NODE_SECONDS / options.nodes
    if not value > 0:
        raise SetupError("the time between failures must be positive", hint='write it as "3 h"')
    return value
