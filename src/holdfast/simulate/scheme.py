"""A way of protecting a job, as the simulator sees it: levels, their costs, how their intervals are set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from holdfast.policy.belief import Belief, belief_from
from holdfast.simulate.failure_models import Floats


@dataclass(frozen=True)
class Shield:
    """One level of protection. Seconds.

    `share` is the part of all failures that this level survives and no lower one does. The cost of a save at
    this level is `stall` plus `slowdown`; `persist` is how long it takes to become durable.
    """

    name: str
    share: float
    stall: float
    slowdown: float = 0.0
    persist: float = 0.0
    restart: float = 0.0
    bytes: float = 0.0

    @property
    def cost(self) -> float:
        return self.stall + self.slowdown


class Intervals(Protocol):
    """Sets every level's interval for each seed."""

    @property
    def belief(self) -> Belief | None:
        """What is believed at the start, where the answer depends on what was seen since."""
        ...

    def choose(self, rate: Floats) -> list[Floats]:
        """One array of seconds per level, given the failures per second that each seed expects."""
        ...


@dataclass(frozen=True)
class Fixed:
    """The same intervals throughout."""

    seconds: tuple[float, ...]
    belief: ClassVar[Belief | None] = None

    def choose(self, rate: Floats) -> list[Floats]:
        return [np.full_like(rate, one) for one in self.seconds]


@dataclass(frozen=True)
class Learned:
    """The debt rule with a learned rate: Young per level, clipped by budget and persist, as in the engine."""

    shields: tuple[Shield, ...]
    budget: float
    belief: Belief = field(default_factory=belief_from)

    def choose(self, rate: Floats) -> list[Floats]:
        chosen: list[Floats] = []
        for shield in self.shields:
            shortest = max(shield.persist, shield.cost / self.budget)
            wanted = np.sqrt(2 * shield.cost / (rate * max(shield.share, 1e-12)))
            # Outer copies are taken of inner saves, so they cannot come more often.
            inner = chosen[-1] if chosen else 0.0
            chosen.append(np.maximum(np.maximum(wanted, shortest), inner))
        return chosen


@dataclass(frozen=True)
class Scheme:
    """A named policy: what protects, and how often. `limit` says which bound set the interval."""

    name: str
    shields: tuple[Shield, ...]
    intervals: Intervals
    limit: str = "none"

    def __post_init__(self) -> None:
        total = sum(shield.share for shield in self.shields)
        if not abs(total - 1) < 1e-9:
            raise ValueError(f"{self.name}: the shares of the levels must add up to 1, not {total}")


def single(name: str, shield: Shield, interval: float, *, limit: str = "none") -> Scheme:
    return Scheme(name, (shield,), Fixed((interval,)), limit=limit)


def nested(
    name: str, shields: Sequence[Shield], base: float, every: Sequence[int], *, limit: str = "none"
) -> Scheme:
    return Scheme(name, tuple(shields), Fixed(tuple(base * n for n in every)), limit=limit)
