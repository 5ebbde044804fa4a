"""A falling loss curve with a floor, fitted robustly to few points. Pure; says no rather than guess.

The floor matters: without it the fitted curve reaches zero and everything after looks worthless. Times are
divided by their own span before fitting, so seconds, minutes and hours give the same curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEWEST_POINTS = 16
# Slopes tried, per span of the data: from a curve that has barely bent to one that is flat after 2 % of it.
SLOPES = np.geomspace(0.3, 150.0, 48)
# The curve must explain this much of the spread of the losses (robustly measured), or it is no help.
LEAST_EXPLAINED = 0.3
HUBER = 1.345  # residuals beyond this many standard deviations count linearly: 95 % efficient under Gauss
MAX_POINTS = 256


@dataclass(frozen=True)
class LossCurve:
    """loss(t) = floor + exp(slope·t + intercept), slope < 0."""

    slope: float
    intercept: float
    floor: float

    def at(self, t: float) -> float:
        return self.floor + math.exp(self.slope * t + self.intercept)

    def fall(self, t: float) -> float:
        """How fast the loss falls, per unit of time."""
        return -self.slope * math.exp(self.slope * t + self.intercept)

    @property
    def relative_fall(self) -> float:
        """|L'|/(L − L_inf): constant for an exponential, whatever the units of the loss."""
        return -self.slope

    def remaining(self, t: float) -> float:
        """Share of the whole fall that is still to come after `t`."""
        return math.exp(self.slope * max(0.0, t))


def fit_loss_curve(times: Sequence[float], losses: Sequence[float]) -> LossCurve | None:
    """The curve, or None when there are too few points, the loss does not fall, or the fit is poor."""
    t = np.asarray(times, dtype=np.float64)
    y = np.asarray(losses, dtype=np.float64)
    usable = np.isfinite(y) & np.isfinite(t)
    t, y = t[usable], y[usable]
    if len(t) < FEWEST_POINTS:
        return None
    start, span = float(t.min()), float(t.max() - t.min())
    if span <= 0:
        return None
    x = (t - start) / span
    if np.ptp(y) == 0:
        return None
    best = _best(x, y, SLOPES)
    # Once more around the best: the grid is coarse, and the caller compares slopes between fits.
    best = min(best, _best(x, y, best.rate * np.geomspace(0.9, 1.1, 9)), key=lambda f: f.misfit)
    if best.amplitude <= 0 or _explained(x, y, best) < LEAST_EXPLAINED:
        return None
    if best.rate <= SLOPES[0]:  # a straight line, as far as these points can tell: no floor in sight
        return None
    slope = -best.rate / span
    return LossCurve(slope=slope, intercept=math.log(best.amplitude) - slope * start, floor=best.floor)


@dataclass(frozen=True)
class _Fit:
    rate: float
    amplitude: float
    floor: float
    misfit: float


def _best(x: NDArray[Any], y: NDArray[Any], rates: NDArray[Any]) -> _Fit:
    """For each decay rate the rest is a line in exp(−rate·x): closed form, reweighted against outliers."""
    basis = np.exp(-rates[:, None] * x[None, :])
    weights = np.ones_like(basis)
    residuals = np.zeros_like(basis)
    for _ in range(4):
        total = weights.sum(axis=1)
        mean_b = (weights * basis).sum(axis=1) / total
        mean_y = (weights * y).sum(axis=1) / total
        centred = basis - mean_b[:, None]
        denominator = np.maximum((weights * centred * centred).sum(axis=1), 1e-300)
        amplitude = (weights * centred * (y[None, :] - mean_y[:, None])).sum(axis=1) / denominator
        floor = mean_y - amplitude * mean_b
        residuals = y[None, :] - floor[:, None] - amplitude[:, None] * basis
        scale = np.maximum(1.4826 * np.median(np.abs(residuals), axis=1), 1e-12)
        size = np.abs(residuals) / (HUBER * scale[:, None])
        weights = 1 / np.maximum(size, 1.0)
    # One common scale, or a rate with a larger spread would judge its own outliers more mildly.
    common = max(float(scale.min()), 1e-12) * HUBER
    size = np.abs(residuals) / common
    misfit = np.where(size < 1, size * size, 2 * size - 1).sum(axis=1)
    i = int(np.argmin(misfit))
    return _Fit(
        rate=float(rates[i]),
        amplitude=float(amplitude[i]),
        floor=float(floor[i]),
        misfit=float(misfit[i]) * common * common,
    )


def _explained(x: NDArray[Any], y: NDArray[Any], fit: _Fit) -> float:
    """How much closer the losses lie to the curve than to their median, outliers cut off."""
    near = np.abs(y - fit.floor - fit.amplitude * np.exp(-fit.rate * x))
    far = np.abs(y - np.median(y))
    cut = max(10 * float(np.median(near)), 1e-9 * float(np.ptp(y)))
    return 1 - float(np.minimum(near, cut).mean()) / max(float(np.minimum(far, cut).mean()), 1e-300)


class LossPoints:
    """The losses seen so far, thinned so that they never exceed a fixed number and stay even in time."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.losses: list[float] = []
        self.spacing = 0.0
        self._sum = 0.0
        self._count = 0

    def add(self, t: float, loss: float) -> None:
        if not math.isfinite(loss):
            return
        self._sum += loss
        self._count += 1
        if self.times and t - self.times[-1] < self.spacing:
            return
        # The mean of what arrived since the last kept point: a smoothed curve, and no extra memory.
        self.times.append(t)
        self.losses.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self.times) >= MAX_POINTS:
            self._thin()

    def forget_before(self, t: float) -> None:
        """Leave out what came before a change, such as a new learning rate."""
        keep = next((i for i, seen in enumerate(self.times) if seen >= t), len(self.times))
        del self.times[:keep], self.losses[:keep]

    def _thin(self) -> None:
        span = self.times[-1] - self.times[0]
        pairs = len(self.times) // 2
        self.losses = [(self.losses[2 * i] + self.losses[2 * i + 1]) / 2 for i in range(pairs)]
        self.times = [(self.times[2 * i] + self.times[2 * i + 1]) / 2 for i in range(pairs)]
        self.spacing = span / pairs
