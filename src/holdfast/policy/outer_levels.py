"""When a save should also go further out (partner, file system, object store): one debt per level.

Outer copies are taken of saves that happen anyway, so this is asked only when one does. Each level keeps its
own age across restarts; starting its count anew after every failure would cost up to 0.4 % of run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import SetupError
from holdfast.policy.costs import Smoothed


@dataclass(frozen=True)
class OuterLevel:
    """A level beyond the first. `share` is the part of all failures that needs this level or a higher one.

    Costs are guesses until measured. `copies_every` sends every Nth save there instead of weighing.
    """

    name: str
    share: float
    cost_seconds: float = 0.0
    persist_seconds: float = 0.0
    copies_every: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise SetupError(
                f"level {self.name!r}: share {self.share} is not between 0 and 1", hint="use a fraction"
            )
        if self.copies_every is not None and self.copies_every < 1:
            raise SetupError(
                f"level {self.name!r} cannot take every {self.copies_every}th save", hint="use 1 or more"
            )


class _Debt:
    def __init__(self, level: OuterLevel) -> None:
        self.level = level
        self.cost = Smoothed(level.cost_seconds)
        self.persist = Smoothed(level.persist_seconds)
        self.since: float | None = None
        self.saves_since = 0
        self.in_flight: dict[int, tuple[float | None, int]] = {}

    def due(self, now: float, rate: float, next_gap: float) -> bool:
        if self.since is None:  # nothing there yet: send the first save everywhere
            return not self.in_flight
        if self.in_flight:
            return False
        if self.level.copies_every is not None:
            return self.saves_since + 1 >= self.level.copies_every
        # Copies can only be taken at saves; the one nearest to the right moment is found half a gap ahead.
        age = now - self.since + next_gap / 2
        if age < (self.persist.value or 0.0):
            return False
        return rate * self.level.share * age * age / 2 >= (self.cost.value or 0.0)


class OuterLevels:
    def __init__(self, levels: Sequence[OuterLevel]) -> None:
        names = [level.name for level in levels]
        if len(set(names)) != len(names) or "" in names:
            raise SetupError(f"levels need different names, not {names}", hint="name each level once")
        if sum(level.share for level in levels) > 1:
            raise SetupError(
                "the shares of the levels add up to more than 1", hint="they are shares of all failures"
            )
        self._debts = {level.name: _Debt(level) for level in levels}

    @property
    def share(self) -> float:
        """Part of all failures that the first level does not survive."""
        return sum(debt.level.share for debt in self._debts.values())

    def due(self, now: float, rate: float, next_gap: float) -> tuple[str, ...]:
        return tuple(name for name, debt in self._debts.items() if debt.due(now, rate, next_gap))

    def save_started(self, now: float, step: int, chosen: tuple[str, ...]) -> None:
        for name, debt in self._debts.items():
            if name in chosen:
                debt.in_flight[step] = (debt.since, debt.saves_since)
                debt.since, debt.saves_since = now, 0
            else:
                debt.saves_since += 1

    def committed(self, name: str, step: int, stall: float, persist: float) -> None:
        debt = self._debts.get(name)
        if debt is None:
            return
        debt.in_flight.pop(step, None)
        debt.cost.add(stall)
        debt.persist.add(persist)

    def failed(self, step: int, name: str | None = None) -> None:
        """The save of `step` did not reach this level (or, with no name, any)."""
        for debt in self._debts.values() if name is None else [self._debts[name]]:
            before = debt.in_flight.pop(step, None)
            if before is not None:
                debt.since, count = before
                debt.saves_since += count + 1

    def restored(self, now: float, ages: Mapping[str, float]) -> None:
        """How far each level's last copy lies behind the restored position, in seconds of training."""
        for name, age in ages.items():
            if name in self._debts:
                self._debts[name].since = now - max(0.0, age)

    def state(self, now: float) -> dict[str, Any]:
        return {
            name: {
                "age": None if debt.since is None else now - debt.since,
                "saves_since": debt.saves_since,
                "cost": debt.cost.value,
                "persist": debt.persist.value,
            }
            for name, debt in self._debts.items()
        }

    def restore_state(self, now: float, state: Mapping[str, Any]) -> None:
        for name, debt in self._debts.items():
            raw = state.get(name)
            if not isinstance(raw, Mapping):
                continue
            for field, target in (("cost", debt.cost), ("persist", debt.persist)):
                value = raw.get(field)
                if isinstance(value, (int, float)) and value >= 0:
                    target.value = float(value)
            if isinstance(raw.get("age"), (int, float)):
                debt.since = now - raw["age"]
            if isinstance(raw.get("saves_since"), int):
                debt.saves_since = raw["saves_since"]
