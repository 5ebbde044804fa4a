"""Costs measured online: how long a step takes, and what a save takes from training. Never reads a clock.

CheckFreq stops the world to profile; here the training itself is the profile. A step's length is the
distance of two boundaries. A save's cost is how much longer the steps took, from the decision until it was
durable, than the same number of undisturbed steps. That counts stall and slowdown once each, whoever caused
them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

from holdfast.policy.observation import SaveCost
from holdfast.policy.profile import Profile

WARM_UP_STEPS = 3  # compilation, allocators, first-touch
WINDOW = 255
UNITS = 10**9  # of which a second has so many
# A boundary this much later than usual is a pause (validation, a suspended process), not a slow step.
PAUSE_STEPS = 10
PAUSE_SECONDS = 1.0
# Undisturbed steps older than so many saves tell nothing about the steps beside the present one...
REMEMBERED_SAVES = 8
LEAST_REMEMBERED = 8
# ...and where saves run back to back there are none: after so many disturbed steps, wait for a few others.
# Otherwise a baseline that was measured on a slow day makes saves look free, and they never stop.
DISTURBED_IN_A_ROW = 24
QUIET_LOOK = 2
# The first save allocates what later ones reuse: 0.6 s against 0.09 s for staging 0.86 GB. Until a second
# one is known, believe a third of it, or a slow first save would put off the second one needlessly long.
COLD_SHARE = 1 / 3


class Smoothed:
    """A mean that follows changes within a few samples, and that one outlier cannot move far.

    A sample with a large standard error counts less: a change must be clear to be followed fast.
    """

    WEIGHT = 0.4
    LEAST_WEIGHT = 0.05
    CLEAR = 0.25  # an error of this share of the value halves the weight
    OUTLIER = 3.0

    __slots__ = ("count", "value")

    def __init__(self, value: float | None = None, *, cold: bool = False) -> None:
        self.value = value
        self.count = 0 if value is None else (1 if cold else 2)

    def add(self, sample: float, error: float = 0.0) -> None:
        self.count += 1
        if self.value is None or self.count <= 2:  # the first one was cold: forget it
            self.value = sample
            return
        weight = self.WEIGHT
        if (scale := self.CLEAR * self.value) > 0:  # not so for 0, nor for the smallest numbers there are
            sample = min(sample, self.OUTLIER * self.value)
            weight /= 1 + min(error / scale, 1e9) ** 2
        # While they are few, samples count alike, however noisy.
        self.value += max(weight, self.LEAST_WEIGHT, min(self.WEIGHT, 1 / self.count)) * (sample - self.value)


class StepTimes:
    """Length of an undisturbed step: median for decisions, mean and deviation for comparing sums.

    Every step costs the same few microseconds: one number goes into a list that stays in order, and one out.
    """

    __slots__ = (
        "_by_save",
        "_new",
        "_ordered",
        "_pauses",
        "_squares",
        "_sum",
        "_to_skip",
        "_window",
        "typical",
    )

    def __init__(self, typical: float | None = None) -> None:
        self._window: deque[float] = deque()
        self._ordered: list[float] = []
        # Whole numbers of units: what is added and taken away again leaves no rounding behind, however many
        # millions of steps there are.
        self._sum = 0
        self._squares = 0
        self._to_skip = WARM_UP_STEPS
        self._pauses = 0
        self._new = 0
        self._by_save: deque[int] = deque(maxlen=REMEMBERED_SAVES)
        self.typical = typical

    def is_pause(self, seconds: float) -> bool:
        typical = self.typical
        return typical is not None and seconds > PAUSE_SECONDS and seconds > PAUSE_STEPS * typical

    def add(self, seconds: float) -> None:
        if self._to_skip:
            self._to_skip -= 1
            return
        if seconds > PAUSE_SECONDS and self.is_pause(seconds):
            self._pauses += 1
            if self._pauses < 4:
                return
            # Not pauses: the steps themselves have become longer.
            self._window.clear()
            self._ordered.clear()
            self._sum = self._squares = 0
        self._pauses = 0
        if len(self._window) == WINDOW:
            self._forget_oldest()
        self._window.append(seconds)
        ordered = self._ordered
        insort(ordered, seconds)
        units = round(seconds * UNITS)
        self._sum += units
        self._squares += units * units
        self._new += 1
        count = len(ordered)
        self.typical = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2

    def _forget_oldest(self) -> None:
        oldest = self._window.popleft()
        del self._ordered[bisect_left(self._ordered, oldest)]
        units = round(oldest * UNITS)
        self._sum -= units
        self._squares -= units * units

    def save_measured(self) -> None:
        """A save has been compared with these steps; forget those that are many saves old."""
        self._by_save.append(self._new)
        self._new = 0
        if len(self._by_save) == REMEMBERED_SAVES:
            for _ in range(len(self._window) - max(LEAST_REMEMBERED, sum(self._by_save))):
                self._forget_oldest()

    @property
    def mean(self) -> float | None:
        count = len(self._window)
        return self._sum / (count * UNITS) if count >= 3 else None

    @property
    def deviation(self) -> float:
        count = len(self._window)
        return math.sqrt(count * self._squares - self._sum * self._sum) / (count * UNITS) if count else 0.0


class MeasuredCosts:
    """The running profile. Fed by the policy; read as a `Profile`."""

    def __init__(self, known: Profile | None = None) -> None:
        known = known or Profile()
        self.steps = StepTimes(known.step_seconds)
        cold = known.saves == 1
        self._stall = Smoothed(known.stall_seconds, cold=cold)
        self._cost = Smoothed(known.cost_seconds, cold=cold)
        self._persist = Smoothed(known.persist_seconds, cold=cold)
        self._restore = known.restore_seconds
        self._bytes = known.state_bytes
        self._saves = known.saves
        self.saves_here = 0
        # The longest recent ones, for a final save that must not be missed.
        self._durations: deque[float] = deque(maxlen=16)
        self._disturbed_seconds = 0.0
        self._disturbed_steps = 0
        self._unseen = 0
        self._quiet = 0

    def quiet_step(self, seconds: float) -> None:
        """A step with no save about."""
        self.steps.add(seconds)
        self._quiet += 1
        if self._quiet >= QUIET_LOOK:
            self._unseen = 0

    @property
    def needs_quiet_steps(self) -> bool:
        """Whether it is so long since an undisturbed step that the cost of a save cannot be told."""
        return self._unseen >= DISTURBED_IN_A_ROW

    def disturbed_step(self, seconds: float) -> None:
        """A step during which a save was being taken or persisted."""
        self._quiet = 0
        self._unseen += 1
        if not self.steps.is_pause(seconds):
            self._disturbed_seconds += seconds
            self._disturbed_steps += 1

    def forget_disturbed(self) -> None:
        self._disturbed_seconds = 0.0
        self._disturbed_steps = 0

    def save_measured(self, cost: SaveCost) -> None:
        """One save is durable, and the last step that it disturbed has been seen."""
        total, error = cost.stall_seconds, 0.0
        usual = self.steps.mean
        if usual is not None and self._disturbed_steps:
            total = self._disturbed_seconds - self._disturbed_steps * usual
            error = self.steps.deviation * math.sqrt(self._disturbed_steps)
        self.forget_disturbed()
        self.steps.save_measured()
        # Every process allocates anew at its first save; a predecessor's warm costs say more about the next.
        cold = self.saves_here == 0 and self._stall.count >= 2
        self._saves += 1
        self.saves_here += 1
        # But it costs no less than a warm one: what is believed to cost more was measured in a bad moment.
        # Where every process dies after its first save, nothing else would ever put it right.
        dearer = self._cost.value is not None and max(total, cost.stall_seconds) < self._cost.value
        if not cold or dearer:
            self._stall.add(cost.stall_seconds)
            # Unclipped: noise of both signs must cancel in the mean.
            self._cost.add(total, error)
        self._persist.add(cost.persist_seconds)
        self._durations.append(cost.stall_seconds + cost.persist_seconds)
        self._bytes = cost.bytes

    def restored(self, seconds: float) -> None:
        self._restore = seconds

    @property
    def cost_seconds(self) -> float | None:
        """Training time that the next save will take; None before the first."""
        if self._stall.value is None:
            return None
        cost = max(self._stall.value, self._cost.value or 0.0)
        return cost * COLD_SHARE if self._stall.count == 1 else cost

    @property
    def stall_seconds(self) -> float | None:
        return self._stall.value

    @property
    def restore_seconds(self) -> float | None:
        return self._restore

    @property
    def persist_seconds(self) -> float:
        return self._persist.value or 0.0

    def surely_within(self) -> float | None:
        """Seconds within which a save will be durable unless the world has changed; None before the first."""
        if self._durations:
            # 1.5 x the worst seen: a p99 needs a hundred saves, and a missed last one loses the interval.
            return 1.5 * max(self._durations)
        if self._stall.value is None or self._persist.value is None:
            return None
        return 3 * (self._stall.value + self._persist.value)

    def profile(self) -> Profile:
        return Profile(
            step_seconds=self.steps.typical,
            stall_seconds=self._stall.value,
            cost_seconds=None
            if self._stall.value is None
            else max(self._stall.value, self._cost.value or 0.0),
            persist_seconds=self._persist.value,
            restore_seconds=self._restore,
            state_bytes=self._bytes,
            saves=self._saves,
        )
