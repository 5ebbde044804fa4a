"""The loss curve followed online: reads seldom, refits as points grow, starts over when the curve breaks.

Reading a loss may synchronise the accelerator, so it must never be read at every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.policy.loss_curve import FEWEST_POINTS, LossCurve, LossPoints, fit_loss_curve

STEPS_BETWEEN_READS = 8
# Refit when a quarter more points are there: so the number of fits grows with the logarithm of the run.
GROWTH = 1.25
# So many points in a row on one side, far out, are a new curve (another learning rate) and not noise.
BROKEN_AFTER = 8


class LossWatch:
    def __init__(self, manual: LossCurve | None = None) -> None:
        self._manual = manual
        self._points = LossPoints()
        self._fitted: LossCurve | None = None
        self._allowed = 0.0
        self._next_step = 0
        self._next_fit = FEWEST_POINTS
        self._outside: list[float] = []

    @property
    def curve(self) -> LossCurve | None:
        """The curve to weigh progress by: the one given, the one fitted, or None."""
        return self._manual or self._fitted

    def wants(self, step: int, t: float) -> bool:
        if self._manual is not None or step < self._next_step:
            return False
        times = self._points.times
        return not times or t - times[-1] >= self._points.spacing / 4

    def add(self, step: int, t: float, loss: float) -> None:
        self._next_step = step + STEPS_BETWEEN_READS
        self._points.add(t, loss)
        if self._broken(t, loss):
            self._start_over(self._outside[0])
        elif len(self._points.times) >= self._next_fit:
            self._refit()

    def _start_over(self, since: float) -> None:
        """The newest points left the curve: fit all once more, and if that fails them, only the new ones."""
        self._refit()
        times, losses = self._points.times, self._points.losses
        recent = [(t, y) for t, y in zip(times, losses, strict=True) if t >= since]
        if self._fitted is not None and not all(self._is_outside(t, y) for t, y in recent):
            return
        self._points.forget_before(since)
        self._fitted = None
        self._next_fit = FEWEST_POINTS

    def _refit(self) -> None:
        times, losses = self._points.times, self._points.losses
        self._fitted = curve = fit_loss_curve(times, losses)
        if curve is not None:
            errors = sorted(abs(y - curve.at(t)) for t, y in zip(times, losses, strict=True))
            # Beyond the typical error, allow for what extrapolating a good fit may be off.
            self._allowed = 8 * errors[len(errors) // 2] + 0.03 * (max(losses) - min(losses))
        grown = round(len(times) * GROWTH)
        # Thinning halves the points; then a third more of them is again a quarter more of the run.
        self._next_fit = max(FEWEST_POINTS, min(grown, len(times) + 32))
        self._outside.clear()

    def _broken(self, t: float, loss: float) -> bool:
        if not self._is_outside(t, loss):
            self._outside.clear()
            return False
        self._outside.append(t)
        return len(self._outside) >= BROKEN_AFTER

    def _is_outside(self, t: float, loss: float) -> bool:
        return self._fitted is not None and abs(loss - self._fitted.at(t)) > self._allowed

    def state(self) -> dict[str, Any]:
        return {
            "times": list(self._points.times),
            "losses": list(self._points.losses),
            "spacing": self._points.spacing,
        }

    def restore_state(self, state: Mapping[str, Any]) -> None:
        times, losses = state.get("times"), state.get("losses")
        if not isinstance(times, list) or not isinstance(losses, list) or len(times) != len(losses):
            return
        if not all(isinstance(value, (int, float)) for value in (*times, *losses)):
            return
        self._points.times, self._points.losses = [float(t) for t in times], [float(y) for y in losses]
        spacing = state.get("spacing")
        self._points.spacing = float(spacing) if isinstance(spacing, (int, float)) else 0.0
        if len(times) >= FEWEST_POINTS:
            self._refit()
