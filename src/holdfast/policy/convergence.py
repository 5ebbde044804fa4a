"""What a second of training is worth while the loss still falls fast: COCI's idea as a unit-free factor.

For a job that is resumed after every failure the loss curve cancels out of the best schedule, so this is only
for runs where it does not: a failure may be final, or stalls are priced at the mean rate of progress. The
answer is a factor on the failure rate; it can never switch protection off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from holdfast.errors import SetupError
from holdfast.policy.loss_curve import LossCurve

# The factor stays within these, so that the gap stays within 10x below and 4x above Young's: a curve that
# was fitted badly may misplace saves, not flood the store or leave a plateau unprotected.
LEAST_FACTOR = 1 / 16
MOST_FACTOR = 100.0
PLATEAU = 0.01


@dataclass(frozen=True)
class ConvergenceSettings:
    """Everything is measured by default; what is given here is taken as it is and never fitted over.

    `theta` is (slope per second, intercept) of ``loss = floor + exp(slope·t + intercept)``; `ts` is the cost
    of one save in seconds; `rate` is failures per second (COCI's lambda).

    `worth` says what a lost second costs. ``"final"``: a failure may end the run for good, so unsaved
    progress would be lost for ever. ``"progress"``: lost work is priced at the present rate of progress and
    stall at the mean rate over `horizon` seconds, which saves early at the expense of late.
    """

    theta: tuple[float, float] | None = None
    floor: float = 0.0
    ts: float | None = None
    rate: float | None = None
    worth: Literal["final", "progress"] = "final"
    horizon: float | None = None

    def __post_init__(self) -> None:
        if self.theta is not None and self.theta[0] >= 0:
            raise SetupError(
                f"theta[0] = {self.theta[0]} describes a loss that does not fall",
                hint="give a negative slope per second, or leave theta out to have it fitted",
            )
        for name, value in (("ts", self.ts), ("rate", self.rate), ("horizon", self.horizon)):
            if value is not None and not value > 0:
                raise SetupError(
                    f"{name} must be positive, not {value}", hint=f"leave {name} out to have it measured"
                )
        if self.worth not in ("final", "progress"):
            raise SetupError(f"unknown worth {self.worth!r}", hint='use "final" or "progress"')
        if self.worth == "progress" and self.horizon is None:
            raise SetupError(
                'worth="progress" compares progress now with the mean over the run, which needs its length',
                hint="give horizon= in seconds",
            )

    @property
    def manual_curve(self) -> LossCurve | None:
        if self.theta is None:
            return None
        return LossCurve(slope=self.theta[0], intercept=self.theta[1], floor=self.floor)


def final_factor(curve: LossCurve, t: float, rate: float) -> float:
    """h/lam with h = lam + |L'|/(L − L_inf): unsaved progress is lost for ever.

    Once all but one percent of the fall is done there is nothing left to weigh, and it is Young's again.
    """
    if curve.remaining(t) < PLATEAU:
        return 1.0
    return min(MOST_FACTOR, 1 + curve.relative_fall / rate)


def progress_factor(curve: LossCurve, t: float, horizon: float, *, least: float = LEAST_FACTOR) -> float:
    """Progress per second now over the mean of the run. A gap of Young/sqrt(factor) follows from it."""
    mean = (curve.at(0.0) - curve.at(horizon)) / horizon
    if mean <= 0:
        return 1.0
    return min(MOST_FACTOR, max(least, curve.fall(t) / mean))


def worth_factor(
    settings: ConvergenceSettings, curve: LossCurve | None, t: float, rate: float, cost: float
) -> float:
    """The factor on the failure rate at training time `t`; 1 (Young) whenever the curve cannot be trusted."""
    if curve is None or rate <= 0:
        return 1.0
    if settings.worth == "final":
        return final_factor(curve, t, rate)
    assert settings.horizon is not None
    # With room for one or two saves only, placing them by the curve does worse than Young.
    if settings.horizon < 3 * math.sqrt(2 * cost / rate):
        return 1.0
    return progress_factor(curve, t, settings.horizon)


def progress_schedule(
    curve: LossCurve, horizon: float, cost: float, rate: float, *, least: float = LEAST_FACTOR
) -> list[float]:
    """Times of the saves in [0, horizon) under the "progress" rule, each gap set at its own start."""
    times: list[float] = []
    base = math.sqrt(2 * cost / rate)
    t = base / math.sqrt(progress_factor(curve, 0.0, horizon, least=least))
    while t < horizon:
        times.append(t)
        t += base / math.sqrt(progress_factor(curve, t, horizon, least=least))
    return times


def equal_loss_schedule(theta: tuple[float, float], ts: float, rate: float) -> list[float]:
    """COCI's released schedule, for comparisons only: equal decreases of an exponential without a floor.

    Its step mixes units of time with units of loss, so the answer depends on the unit; its authors use
    minutes.
    """
    slope, intercept = theta
    start = math.exp(intercept)
    step = (1 - math.exp(slope * ts)) * (1 / (2 * rate) - 1 / (2 * slope))
    return [(math.log(start - i * step) - intercept) / slope for i in range(1, math.floor(start / step) + 1)]
