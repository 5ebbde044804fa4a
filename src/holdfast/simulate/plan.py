"""The planner: one job, every policy, what each would cost. Text for people, plain values for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.policy.intervals import goodput
from holdfast.simulate.compare import OURS, OURS_LEARNED, ours
from holdfast.simulate.job import Job
from holdfast.simulate.outcome import Outcome
from holdfast.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Plan:
    """The comparison of policies for one job, with the assumptions it rests on."""

    job: Job
    outcomes: tuple[Outcome, ...]
    assumptions: tuple[str, ...]
    gpu_hour_price: float | None = None

    @property
    def ours(self) -> Outcome:
        return next(one for one in self.outcomes if one.name == OURS)

    def regret(self, outcome: Outcome) -> float:
        """Extra wall time for the same work, against the rule that knows the failure rate."""
        return self.ours.goodput / outcome.goodput - 1 if outcome.goodput > 0 else float("inf")

    def gpu_hours_lost_per_day(self, outcome: Outcome) -> float:
        return (1 - outcome.goodput) * self.job.gpus * 24


def assumptions(job: Job) -> tuple[str, ...]:
    """Every number that the plan rests on, as sentences."""
    lines = [
        f"{job.nodes:,} nodes with {job.gpus_per_node} GPUs; one failure in {format_seconds(job.mtbf)}",
        f"state {format_bytes(job.state_bytes)}; a save stalls training for {format_seconds(job.stall)}"
        f" and slows it by {100 * job.interference:.3g} % until it is durable",
    ]
    for shield in job.shields():
        lines.append(
            f"{shield.name}: durable after {format_seconds(shield.persist)}, restart from it takes "
            f"{format_seconds(shield.restart)}, needed by {100 * shield.share:.3g} % of failures"
        )
    lines.append(
        f"budget {100 * job.budget:.3g} %; synchronous stall {format_seconds(job.synchronous().stall)}"
    )
    return tuple(lines)


def rows(plan: Plan) -> list[dict[str, Any]]:
    """One plain dictionary per policy."""
    return [
        {
            "policy": one.name,
            "goodput": one.goodput,
            "goodput_p5": one.percentile(5),
            "goodput_p95": one.percentile(95),
            "breakdown": one.breakdown,
            "interval_seconds": list(one.intervals),
            "failures": float(one.failures.mean()),
            "saves_per_day": one.saves_per_day,
            "bytes_per_day": one.bytes_per_day,
            "loss_p99_seconds": one.loss_p99,
            "gpu_hours_lost_per_day": plan.gpu_hours_lost_per_day(one),
            "money_lost_per_day": None
            if plan.gpu_hour_price is None
            else plan.gpu_hours_lost_per_day(one) * plan.gpu_hour_price,
            "regret": plan.regret(one),
            "limit": one.limit,
        }
        for one in plan.outcomes
    ]


def as_json(plan: Plan) -> dict[str, Any]:
    scheme = ours(plan.job)
    recommended = {s.name: seconds for s, seconds in zip(scheme.shields, plan.ours.intervals, strict=True)}
    return {
        "assumptions": list(plan.assumptions),
        "mtbf_seconds": plan.job.mtbf,
        "recommended_interval_seconds": recommended,
        "closed_form_goodput_one_level": _closed_form(plan.job),
        "policies": rows(plan),
    }


def _closed_form(job: Job) -> float:
    one = job.asynchronous()
    best = max(one.persist, (2 * one.cost * job.mtbf) ** 0.5)
    return goodput(best, one.cost, job.mtbf, one.restart, one.persist)


def as_text(plan: Plan) -> str:
    """The assumptions, the table, and the recommendation in a sentence."""
    header = ["policy", "goodput", "p5", "p95", "stall", "slow", "rework", "restart", "interval", "saves/d",
              "bytes/d", "p99 loss", "GPU-h lost/d"]  # fmt: skip
    if plan.gpu_hour_price is not None:
        header.append("money lost/d")
    body = []
    for one in plan.outcomes:
        parts = one.breakdown
        line = [one.name, f"{one.goodput:.4f}", f"{one.percentile(5):.4f}", f"{one.percentile(95):.4f}",
                *(f"{parts[name]:.4f}" for name in ("stall", "slowdown", "rework", "restart")),
                " / ".join(format_seconds(seconds) for seconds in one.intervals), f"{one.saves_per_day:.3g}",
                format_bytes(one.bytes_per_day), format_seconds(one.loss_p99),
                f"{plan.gpu_hours_lost_per_day(one):,.0f}"]  # fmt: skip
        if plan.gpu_hour_price is not None:
            line.append(f"{plan.gpu_hours_lost_per_day(one) * plan.gpu_hour_price:,.0f}")
        body.append(line)
    lines = ["Assumed:", *(f"  {line}" for line in plan.assumptions), "", *table(header, body), ""]
    lines.append(_recommendation(plan))
    return "\n".join(lines)


def _recommendation(plan: Plan) -> str:
    best = plan.ours
    scheme = ours(plan.job)
    where = ", ".join(
        f"{shield.name} every {format_seconds(seconds)}"
        for shield, seconds in zip(scheme.shields, best.intervals, strict=True)
    )
    others = [one for one in plan.outcomes if one.name not in (OURS, OURS_LEARNED)]
    rival = max(others, key=lambda one: one.goodput)
    gain = 100 * (best.goodput - rival.goodput)
    limit = "" if best.limit == "none" else f"; limit in force: {best.limit}"
    unknown = next(one for one in plan.outcomes if one.name == OURS_LEARNED)
    price = 100 * (best.goodput - unknown.goodput)
    return (
        f"Save to {where}: goodput {best.goodput:.4f}, {gain:+.2f} points against {rival.name}{limit}. "
        f"Not knowing the failure rate costs {max(price, 0.0):.2f} points."
    )


def table(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Columns aligned: the first to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in (header, *body)) for i in range(len(header))]
    lines = []
    for row in (header, ["-" * width for width in widths], *body):
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
