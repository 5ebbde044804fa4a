"""The comparison of strategies for one job: numbers, a recommendation, a drawing of where time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from holdfast.plan.model import Job
from holdfast.plan.monte_carlo import Outcome
from holdfast.plan.strategies import OURS, OURS_LEARNED, worthwhile_tiers
from holdfast.policy.intervals import goodput
from holdfast.units import format_bytes, format_seconds

# Told apart by colour-blind people too (Okabe and Ito's palette), useful time palest.
_COLOURS = {
    "useful": "#c9e3d6",
    "stall": "#d55e00",
    "slowdown": "#e69f00",
    "rework": "#0072b2",
    "restart": "#7f7f7f",
}
_LEFT, _INNER, _TOP, _ROW, _BAR = 220, 670, 78, 34, 22


@dataclass(frozen=True)
class Forecast:
    """What was simulated, with the assumptions it rests on."""

    job: Job
    outcomes: tuple[Outcome, ...]
    assumptions: tuple[str, ...]
    gpu_hour_price: float | None = None

    def of(self, name: str) -> Outcome:
        return next(one for one in self.outcomes if one.name == name)

    @property
    def intervals(self) -> dict[str, float]:
        """Seconds between saves to each tier that we recommend."""
        kept = worthwhile_tiers(self.job)
        return {tier.name: one for tier, one in zip(kept, self.of(OURS).intervals, strict=True)}

    def gpu_hours_lost_per_day(self, outcome: Outcome) -> float:
        return (1 - outcome.goodput) * self.job.gpus * 24

    def money_lost_per_day(self, outcome: Outcome) -> float | None:
        price = self.gpu_hour_price
        return None if price is None else self.gpu_hours_lost_per_day(outcome) * price

    def as_json(self) -> dict[str, Any]:
        one = self.job.asynchronous()
        best = max(one.persist, (2 * one.cost * self.job.mtbf) ** 0.5)
        return {
            "assumptions": list(self.assumptions),
            "mtbf_seconds": self.job.mtbf,
            "recommended_interval_seconds": self.intervals,
            "closed_form_goodput_one_level": goodput(best, one.cost, self.job.mtbf, one.restart, one.persist),
            "policies": [self._row(outcome) for outcome in self.outcomes],
        }

    def _row(self, one: Outcome) -> dict[str, Any]:
        return {
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
            "gpu_hours_lost_per_day": self.gpu_hours_lost_per_day(one),
            "money_lost_per_day": self.money_lost_per_day(one),
            # Extra wall time for the same work, against the rule that knows the failure rate.
            "regret": self.of(OURS).goodput / one.goodput - 1 if one.goodput > 0 else float("inf"),
            "limit": one.limit,
        }

    def recommendation(self) -> str:
        best = self.of(OURS)
        where = ", ".join(f"{tier} every {format_seconds(one)}" for tier, one in self.intervals.items())
        others = [one for one in self.outcomes if one.name not in (OURS, OURS_LEARNED)]
        rival = max(others, key=lambda one: one.goodput)
        gain = 100 * (best.goodput - rival.goodput)
        limit = "" if best.limit == "none" else f"; limit in force: {best.limit}"
        price = max(100 * (best.goodput - self.of(OURS_LEARNED).goodput), 0.0)
        return (
            f"Save to {where}: goodput {best.goodput:.4f}, {gain:+.2f} points against {rival.name}{limit}. "
            f"Not knowing the failure rate costs {price:.2f} points."
        )


def assumptions(job: Job) -> tuple[str, ...]:
    """Every number that a forecast rests on, as sentences."""
    return (
        f"{job.nodes:,} nodes with {job.gpus_per_node} GPUs; one failure in {format_seconds(job.mtbf)}",
        f"state {format_bytes(job.state_bytes)}; a save stalls training for {format_seconds(job.stall)}"
        f" and slows it by {100 * job.interference:.3g} % until it is durable",
        *(
            f"{tier.name}: durable after {format_seconds(tier.persist)}, restart from it takes "
            f"{format_seconds(tier.restart)}, needed by {100 * tier.share:.3g} % of failures"
            for tier in job.costs()
        ),
        f"budget {100 * job.budget:.3g} %; synchronous stall {format_seconds(job.synchronous().stall)}",
    )


def drawing(title: str, outcomes: Sequence[Outcome]) -> str:
    """A self-contained SVG: one bar for each strategy, its shares of wall time side by side."""
    wide, bottom = _LEFT + _INNER + 90, _TOP + len(outcomes) * _ROW
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {bottom + 46}" width="{wide}" '
        f'height="{bottom + 46}" font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#222">',
        f'<rect width="{wide}" height="{bottom + 46}" fill="white"/>',
        f'<text x="{_LEFT}" y="26" font-size="16" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (name, colour) in enumerate(_COLOURS.items()):
        x = _LEFT + 110 * number
        out.append(f'<rect x="{x}" y="42" width="14" height="14" fill="{colour}"/>')
        out.append(f'<text x="{x + 20}" y="54">{name}</text>')
    for tick in range(0, 101, 20):
        x = _LEFT + _INNER * tick // 100
        out.append(f'<line x1="{x}" y1="{_TOP - 6}" x2="{x}" y2="{bottom}" stroke="#ddd"/>')
        out.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{tick} %</text>')
    for row, one in enumerate(outcomes):
        at, y = float(_LEFT), _TOP + row * _ROW
        out.append(f'<text x="{_LEFT - 10}" y="{y + 16}" text-anchor="end">{escape(one.name)}</text>')
        for name, share in one.breakdown.items():
            tip = f"<title>{escape(one.name)}: {name} {100 * share:.2f} %</title>"
            size = f'width="{_INNER * max(0.0, share):.2f}" height="{_BAR}"'
            out.append(f'<rect x="{at:.2f}" y="{y}" {size} fill="{_COLOURS[name]}">{tip}</rect>')
            at += _INNER * max(0.0, share)
        out.append(f'<text x="{_LEFT + _INNER + 8}" y="{y + 16}">{100 * one.goodput:.1f} %</text>')
    return "\n".join([*out, "</svg>", ""])
