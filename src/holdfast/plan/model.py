"""The job to plan for, what each tier costs it, and ways of saving. Seconds and bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SetupError
from holdfast.policy.belief import Belief
from holdfast.units import parse_bytes

Floats = NDArray[np.float64]
# Which failures a tier survives and no tier before it: a crashed process, a lost node, everything else.
# Assumed from published causes; see docs/planner.md.
PROCESS_SHARE, NODE_SHARE = 0.20, 0.72
_SURVIVES = {"memory": PROCESS_SHARE, "nvme": PROCESS_SHARE, "partner": PROCESS_SHARE + NODE_SHARE}
_SURVIVES |= {"xor": _SURVIVES["partner"], "rs": _SURVIVES["partner"]}
# Bytes per second and node, where the command line gives none.
_PER_NODE = {"memory": 40e9, "nvme": 5e9, "partner": 10e9, "xor": 5e9, "rs": 5e9}
_TIER = re.compile(
    r"(?P<name>(?:[^:=]|:(?=//))+?)(?:[:=](?P<speed>[0-9.]+\s*[kMGTP]?i?B)/s(?P<each>/node)?)?(?::(?P<share>[0-9.]+)%)?"
)


class TierSpeed(NamedTuple):
    """A tier as the user describes it. `survives`: the share of all failures that its copies outlast."""

    name: str
    bytes_per_second: float
    survives: float


@dataclass(frozen=True)
class TierCost:
    """One tier for one job.

    `share` is the part of all failures that this tier survives and no nearer one does. A save costs training
    `stall` plus `slowdown`; `persist` is how long it takes to become durable.
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


@dataclass(frozen=True)
class Job:
    """Every assumption has a name. `stall` is what an asynchronous save takes from the training thread."""

    nodes: int
    gpus_per_node: int
    state_bytes: float
    mtbf: float
    tiers: tuple[TierSpeed, ...]
    stall: float = 2.0
    interference: float = 0.02
    restart: float = 600.0
    restart_near: float = 180.0
    budget: float = 0.03
    epoch: float = 4 * 3600.0
    fixed: float = 3600.0
    persist: float | None = None  # measured; otherwise from the tier's speed

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    def asynchronous(self) -> TierCost:
        """Every save to the last tier, in the background."""
        return self._cost(self.tiers[-1], 1.0, self.stall)

    def synchronous(self) -> TierCost:
        """The same with training waiting for it."""
        tier = self.asynchronous()
        return TierCost(tier.name, 1.0, self.stall + tier.persist, restart=tier.restart, bytes=tier.bytes)

    def costs(self) -> tuple[TierCost, ...]:
        """One for each tier, the failures shared out among them."""
        found: list[TierCost] = []
        below = 0.0
        for tier in self.tiers:
            reach = 1.0 if tier is self.tiers[-1] else tier.survives
            found.append(self._cost(tier, max(0.0, reach - below), 0.0 if found else self.stall))
            below = max(below, reach)
        return tuple(found)

    def _cost(self, tier: TierSpeed, share: float, stall: float) -> TierCost:
        is_last = tier is self.tiers[-1]
        persist = self.state_bytes / tier.bytes_per_second
        if is_last and self.persist is not None:
            persist = self.persist
        # Reading back takes as long as writing.
        restart = (self.restart if is_last else self.restart_near) + persist
        return TierCost(
            tier.name, share, stall, self.interference * persist, persist, restart, self.state_bytes
        )


@dataclass(frozen=True)
class Strategy:
    """A way of saving: to which tiers, and how often. `limit` says which bound set the interval.

    With `seconds`, the intervals are fixed, or grow by e to the power of `fall` over the whole training. With
    a `belief`, each tier's interval is Young's for the believed failure rate, clipped by budget and persist,
    as in the engine.
    """

    name: str
    tiers: tuple[TierCost, ...]
    seconds: tuple[float, ...] = ()
    fall: float = 0.0
    belief: Belief | None = None
    budget: float = 0.03
    limit: str = "none"

    def __post_init__(self) -> None:
        total = sum(tier.share for tier in self.tiers)
        if not abs(total - 1) < 1e-9:
            raise ValueError(f"{self.name}: the shares of the tiers must add up to 1, not {total}")

    def intervals(self, rate: Floats, done: Floats) -> list[Floats]:
        """Seconds for each tier and seed. `rate`: expected failures per second; `done`: share of the work."""
        if self.belief is None:
            return [one * np.exp(self.fall * done) for one in self.seconds]
        chosen: list[Floats] = []
        for tier in self.tiers:
            shortest = max(tier.persist, tier.cost / self.budget)
            wanted = np.sqrt(2 * tier.cost / (rate * max(tier.share, 1e-12)))
            # Outer copies are taken of inner saves, so they cannot come more often.
            inner = chosen[-1] if chosen else 0.0
            chosen.append(np.maximum(np.maximum(wanted, shortest), inner))
        return chosen


def single(name: str, tier: TierCost, interval: float, *, limit: str = "none") -> Strategy:
    return Strategy(name, (tier,), (interval,), limit=limit)


def equal_loss(name: str, tier: TierCost, count: int, horizon: float, fall: float = 5.0) -> Strategy:
    """`count` saves at equal decreases of a loss that falls by `fall` e-folds in the horizon."""
    return Strategy(name, (tier,), (horizon * -math.expm1(-fall) / (fall * (count + 1)),), fall=fall)


def parse_tiers(words: Sequence[str], nodes: int) -> tuple[TierSpeed, ...]:
    """ "partner", "partner:10GB/s/node", "/lustre:500GB/s", "nvme:5GB/s/node:20%", nearest first."""
    tiers = []
    for word in words:
        match = _TIER.fullmatch(word.strip())
        if match is None:
            raise SetupError(
                f"cannot read tier {word!r}", hint='write it as "partner:10GB/s/node" or "/lustre:500GB/s"'
            )
        name = match["name"]
        kind = name.strip("/").split("/")[-1].lower()
        if match["speed"] is not None:
            speed = float(parse_bytes(match["speed"].replace(" ", "")))
            speed *= nodes if match["each"] else 1
        elif kind in _PER_NODE:
            speed = _PER_NODE[kind] * nodes
        else:
            raise SetupError(f"how fast is tier {name!r}?", hint=f'add its speed, such as "{name}:200GB/s"')
        if speed <= 0:
            raise SetupError(f"tier {name!r} cannot have speed 0", hint="give bytes per second")
        survives = float(match["share"]) / 100 if match["share"] else _SURVIVES.get(kind, 1.0)
        tiers.append(TierSpeed(name, speed, survives))
    if not tiers:
        raise SetupError("there is no tier to save to", hint='give at least one, such as "/lustre:500GB/s"')
    if any(later.survives < earlier.survives for earlier, later in pairwise(tiers[:-1])):
        raise SetupError("tiers must be given nearest first", hint="such as: memory partner /lustre:500GB/s")
    return tuple(tiers)
