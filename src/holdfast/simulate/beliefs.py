"""The engine's belief about the failure rate, for many seeds at once. Same grid, same update, same mean."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.policy.belief import RATES, STARTS_ANEW, Belief
from holdfast.simulate.failure_models import Floats


class Beliefs:
    """One belief per seed. Ages and spells are arrays of one value per seed, in seconds."""

    def __init__(self, start: Belief, seeds: int) -> None:
        self._rates = np.asarray(RATES)[:, None]
        self._anew = np.asarray(start.anew)[:, None]
        self._weights = np.repeat(np.asarray(start.weights)[:, None], seeds, axis=1)

    def mean(self, age: Floats) -> Floats:
        """Failures per second after so long in the present spell."""
        left = self._weights * np.exp(-self._rates * age)
        mean: Floats = (left * self._rates).sum(axis=0) / left.sum(axis=0)
        return mean

    def after_spell(self, seconds: Floats, failed: NDArray[np.bool_]) -> None:
        left = self._weights * np.exp(-self._rates * seconds)
        left = np.where(failed, left * self._rates, left)
        left /= left.sum(axis=0)
        self._weights = np.where(failed, (1 - STARTS_ANEW) * left + STARTS_ANEW * self._anew, left)
