"""`holdfast plan`: what each checkpointing policy would cost on a cluster, before renting it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from holdfast.errors import SetupError
from holdfast.simulate.chart import stacked_bars
from holdfast.simulate.compare import compare
from holdfast.simulate.failure_models import FailureModel, Poisson, Weibull
from holdfast.simulate.job import Job, Tier, parse_tiers
from holdfast.simulate.measured import Measured, read_measured
from holdfast.simulate.plan import Plan, as_json, as_text, assumptions
from holdfast.simulate.presets import PRESETS, preset
from holdfast.units import format_seconds, parse_bytes, parse_seconds, parse_share

DAY = 86400.0
# Published are 3.5 to 24 failures per 1000 node-days; this is 12.
PUBLISHED_NODE_SECONDS = 2000 * 3600.0
DEFAULT_TIERS = ("partner", "file-system:200GB/s")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="compare checkpointing policies for a cluster: goodput, intervals, what is lost",
        description="Simulates the job under every policy, ours among them, and says where the time goes.",
        epilog="presets: " + "; ".join(f"{one.name} = {one.source}" for one in PRESETS.values()),
    )
    add_job_arguments(parser)
    parser.add_argument("--plot", metavar="OUT.svg", help="write the breakdown as a self-contained SVG")
    parser.add_argument("--gpu-hour-price", type=float, help="to show money lost per day")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.set_defaults(run=run_plan)


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """What describes the job; shared with `holdfast simulate`."""
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--gpus-per-node", type=int, default=8)
    parser.add_argument("--state", help='size of the whole training state, such as "1.4TB"')
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("--mtbf", help='mean time between failures of the whole job, such as "3 h"')
    rate.add_argument("--mtbf-node", help='the same of one node, such as "250d"')
    rate.add_argument("--preset", choices=sorted(PRESETS), help="a published failure rate")
    parser.add_argument(
        "--tiers", nargs="+", metavar="TIER", help='nearest first: "partner:10GB/s/node" "/lustre:500GB/s"'
    )
    parser.add_argument(
        "--from", dest="run_folder", metavar="RUN", help="take the measured costs of this run"
    )
    parser.add_argument("--stall", help="what a save takes from the training thread (default 2 s)")
    parser.add_argument("--interference", default="2%", help="slowdown until a save is durable")
    parser.add_argument(
        "--restart", default="10 min", help="detect, reschedule and start, from the last tier"
    )
    parser.add_argument("--restart-near", default="3 min", help="the same, from a nearer tier")
    parser.add_argument("--budget", default="3%", help="the most that saves may cost")
    parser.add_argument("--epoch", default="4 h", help="for the policy that saves at epoch ends")
    parser.add_argument("--fixed", default="1 h", help="for the policies with a fixed interval")
    parser.add_argument("--weibull", type=float, metavar="SHAPE", help="clustered failures, shape below 1")
    parser.add_argument("--days", type=float, default=90.0)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)


def run_plan(args: argparse.Namespace) -> int:
    job, failures, facts = job_from(args)
    outcomes = compare(job, failures, horizon=args.days * DAY, seeds=args.seeds, seed=args.seed)
    plan = Plan(job, tuple(outcomes), (*facts, *assumptions(job)), args.gpu_hour_price)
    if args.plot:
        title = f"{job.gpus:,} GPUs, a failure every {format_seconds(job.mtbf)}: where the time goes"
        _write(Path(args.plot), stacked_bars(title, outcomes))
    print(json.dumps(as_json(plan), indent=1) if args.json else as_text(plan))
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise SetupError(
            f"cannot write the plot to {path}: {error.strerror}", hint="give another path"
        ) from error


def job_from(args: argparse.Namespace) -> tuple[Job, FailureModel, tuple[str, ...]]:
    """The job that the arguments describe, its failures, and where the numbers come from."""
    if args.nodes < 1 or args.gpus_per_node < 1 or args.seeds < 1 or args.days <= 0:
        raise SetupError("nodes, GPUs, seeds and days must be positive", hint="check the numbers given")
    facts: list[str] = []
    measured = None
    if args.run_folder:
        measured = read_measured(args.run_folder)
        facts.append(f"measured in {args.run_folder}: {measured.saves} saves, {measured.failures} failures")
    mtbf = _mtbf(args, measured, facts)
    if args.state is None and measured is None:
        raise SetupError("how large is the training state?", hint='give --state "1.4TB", or --from a run')
    state = float(parse_bytes(args.state)) if args.state else measured.state_bytes if measured else 0.0
    scaled = state / measured.state_bytes if measured and measured.state_bytes else 1.0
    stall = parse_seconds(args.stall) if args.stall else measured.stall * scaled if measured else 2.0
    tiers, persist = _tiers(args, measured, scaled)
    job = Job(
        nodes=args.nodes,
        gpus_per_node=args.gpus_per_node,
        state_bytes=state,
        mtbf=mtbf,
        tiers=tiers,
        stall=stall,
        interference=parse_share(args.interference),
        restart=parse_seconds(args.restart),
        restart_near=parse_seconds(args.restart_near),
        budget=parse_share(args.budget),
        epoch=parse_seconds(args.epoch),
        fixed=parse_seconds(args.fixed),
        persist=persist,
    )
    failures: FailureModel = Poisson(mtbf) if args.weibull is None else Weibull(mtbf, args.weibull)
    return job, failures, tuple(facts)


def _tiers(
    args: argparse.Namespace, measured: Measured | None, scaled: float
) -> tuple[tuple[Tier, ...], float | None]:
    if args.tiers is None and measured is not None:
        speed = measured.state_bytes / max(measured.persist, 1e-9)
        return (Tier(str(args.run_folder), speed, 1.0),), measured.persist * scaled
    return parse_tiers(args.tiers or DEFAULT_TIERS, args.nodes), None


def _mtbf(args: argparse.Namespace, measured: Measured | None, facts: list[str]) -> float:
    if args.mtbf:
        value = parse_seconds(args.mtbf)
    elif args.mtbf_node:
        value = parse_seconds(args.mtbf_node) / args.nodes
    elif args.preset:
        chosen = preset(args.preset)
        facts.append(f"failure rate: {chosen.per_1000_node_days:g} per 1000 node-days; {chosen.source}")
        value = chosen.node_mtbf / args.nodes
    elif measured is not None and measured.mtbf is not None:
        value = measured.mtbf
    else:
        facts.append("failure rate: one per node in 2,000 h, the pessimistic side of what is published")
        value = PUBLISHED_NODE_SECONDS / args.nodes
    if not value > 0:
        raise SetupError("the time between failures must be positive", hint='write it as "3 h"')
    return value
