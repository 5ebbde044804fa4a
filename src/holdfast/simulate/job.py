"""The job to plan for: machines, state, tiers and what they cost. Every assumption has a name here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.errors import SetupError
from holdfast.simulate.scheme import Shield
from holdfast.units import parse_bytes

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


@dataclass(frozen=True)
class Tier:
    """A place for copies. `survives` is the share of all failures after which its copies are still there."""

    name: str
    bytes_per_second: float
    survives: float


@dataclass(frozen=True)
class Job:
    """Seconds and bytes. `stall` is what an asynchronous save takes from the training thread."""

    nodes: int
    gpus_per_node: int
    state_bytes: float
    mtbf: float
    tiers: tuple[Tier, ...]
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

    @property
    def outermost(self) -> Tier:
        return self.tiers[-1]

    def persist_seconds(self, tier: Tier) -> float:
        if self.persist is not None and tier is self.outermost:
            return self.persist
        return self.state_bytes / tier.bytes_per_second

    def restart_seconds(self, tier: Tier) -> float:
        waiting = self.restart if tier is self.outermost else self.restart_near
        return waiting + self.persist_seconds(tier)  # reading back takes as long as writing

    def synchronous(self) -> Shield:
        """Everything waits until the outermost tier has it."""
        tier = self.outermost
        stall = self.stall + self.persist_seconds(tier)
        return Shield(tier.name, 1.0, stall, 0.0, 0.0, self.restart_seconds(tier), self.state_bytes)

    def asynchronous(self) -> Shield:
        tier = self.outermost
        return self._shield(tier, 1.0, self.stall)

    def shields(self) -> tuple[Shield, ...]:
        """One per tier, the failures shared out among them."""
        found: list[Shield] = []
        below = 0.0
        for i, tier in enumerate(self.tiers):
            reach = 1.0 if tier is self.outermost else tier.survives
            found.append(self._shield(tier, max(0.0, reach - below), self.stall if i == 0 else 0.0))
            below = max(below, reach)
        return tuple(found)

    def _shield(self, tier: Tier, share: float, stall: float) -> Shield:
        persist = self.persist_seconds(tier)
        restart = self.restart_seconds(tier)
        return Shield(
            tier.name, share, stall, self.interference * persist, persist, restart, self.state_bytes
        )


def parse_tiers(words: Sequence[str], nodes: int) -> tuple[Tier, ...]:
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
        tiers.append(Tier(name, speed, survives))
    if not tiers:
        raise SetupError("there is no tier to save to", hint='give at least one, such as "/lustre:500GB/s"')
    if any(later.survives < earlier.survives for earlier, later in pairwise(tiers[:-1])):
        raise SetupError("tiers must be given nearest first", hint="such as: memory partner /lustre:500GB/s")
    return tuple(tiers)
