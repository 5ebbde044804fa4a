"""The exact expectation of a nested pattern of levels, by solving its chain. Validates the simulator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.policy.levels import Level


def pattern_overhead(levels: Sequence[Level], every: Sequence[int], base: float) -> float:
    """Expected extra time per useful second when level i takes every `every[i]`-th of the base intervals.

    V_i is the expected time from the start of segment i to the end of the pattern. A failure of a level's
    severity throws the job back to the start of that level's last block.
    """
    rate = sum(level.rate for level in levels)
    segments = every[-1]
    matrix = np.eye(segments)
    constant = np.zeros(segments)
    for i in range(segments):
        costs = [level.cost for level, n in zip(levels, every, strict=True) if (i + 1) % n == 0]
        survive = float(np.exp(-rate * (base + sum(costs))))
        constant[i] += (1 - survive) / rate
        if i + 1 < segments:
            matrix[i, i + 1] -= survive
        for level, n in zip(levels, every, strict=True):
            hit = (1 - survive) * level.rate / rate
            constant[i] += hit * level.restart
            matrix[i, i - i % n] -= hit
    return float(np.linalg.solve(matrix, constant)[0]) / (segments * base) - 1
