"""`holdfast simulate`: one setting, one interval or policy, simulated and set against the closed form."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from holdfast.cli.plan_cmd import DAY, add_job_arguments, job_from
from holdfast.errors import SetupError
from holdfast.policy.intervals import goodput
from holdfast.simulate.compare import LEARNING_SEEDS, OURS, learned, ours, policies
from holdfast.simulate.failure_models import FailureModel, Replayed
from holdfast.simulate.job import Job
from holdfast.simulate.monte_carlo import simulate
from holdfast.simulate.outcome import Outcome
from holdfast.simulate.scheme import Scheme, single
from holdfast.simulate.slots import SlotScheme, simulate_slots
from holdfast.units import format_seconds, parse_seconds


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "simulate",
        help="simulate one policy or interval against failures, with its closed form beside it",
        description="Simulates a job under one policy, or with saves to the last tier at one interval.",
    )
    add_job_arguments(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--interval", help='save to the last tier this often, such as "10 min"')
    what.add_argument("--policy", default=OURS, help="a name from the table of `holdfast plan`")
    parser.add_argument("--wrong-prior", type=float, help="start from an MTBF this many times off, and learn")
    parser.add_argument("--trace", metavar="FILE", help="replay up-times: a JSON list of seconds")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run_simulate)


def run_simulate(args: argparse.Namespace) -> int:
    job, failures, facts = job_from(args)
    if args.trace:
        failures = Replayed(_read_trace(args.trace))
    horizon = args.days * DAY
    scheme = _scheme(args, job, horizon)
    if isinstance(scheme, SlotScheme):
        outcome = simulate_slots(scheme, failures, horizon=horizon, seeds=args.seeds, seed=args.seed)
    else:
        outcome = simulate(scheme, failures, horizon=horizon, seeds=args.seeds, seed=args.seed)
    expected = _closed_form(scheme, outcome, failures)
    unknowing = None
    if scheme.name == OURS:
        few = min(args.seeds, LEARNING_SEEDS)
        unknowing = simulate(learned(job), failures, horizon=horizon, seeds=few, seed=args.seed)
    if args.json:
        print(json.dumps(_as_json(outcome, expected, facts, unknowing), indent=1))
    else:
        print(_as_text(outcome, expected, unknowing))
    return 0


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


def _scheme(args: argparse.Namespace, job: Job, horizon: float) -> Scheme | SlotScheme:
    if args.interval:
        seconds = parse_seconds(args.interval)
        return single(f"every {format_seconds(seconds)}", job.asynchronous(), seconds)
    if args.wrong_prior is not None:
        return learned(job, args.wrong_prior)
    if args.policy == OURS:
        return ours(job)
    known = {one.name: one for one in policies(job, horizon)}
    if args.policy not in known:
        names = ", ".join(f'"{name}"' for name in known)
        raise SetupError(f"there is no policy {args.policy!r} to simulate", hint=f"use one of {names}")
    return known[args.policy]


def _closed_form(scheme: Scheme | SlotScheme, outcome: Outcome, failures: FailureModel) -> float | None:
    """Daly's exact goodput, where it applies: one level, one interval."""
    if isinstance(scheme, SlotScheme) or len(scheme.shields) != 1:
        return None
    one = scheme.shields[0]
    return goodput(outcome.intervals[0], one.cost, failures.mtbf, one.restart, one.persist)


def _as_json(
    outcome: Outcome, expected: float | None, facts: tuple[str, ...], unknowing: Outcome | None
) -> dict[str, Any]:
    return {
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


def _as_text(outcome: Outcome, expected: float | None, unknowing: Outcome | None) -> str:
    parts = ", ".join(f"{name} {100 * share:.2f} %" for name, share in outcome.breakdown.items())
    lines = [
        f"{outcome.name}: goodput {outcome.goodput:.5f} ± {outcome.standard_error:.5f}",
        f"time: {parts}",
        f"intervals {' / '.join(format_seconds(s) for s in outcome.intervals)}; "
        f"{outcome.failures.mean():.1f} failures; p99 loss {format_seconds(outcome.loss_p99)}",
    ]
    if unknowing is not None:
        lines.append(f"{unknowing.name}: goodput {unknowing.goodput:.5f} ± {unknowing.standard_error:.5f}")
    if expected is not None:
        lines.append(f"closed form (constant rate): {expected:.5f}")
    return "\n".join(lines)
