"""From the words of a user, or of an earlier attempt, to the tiers of this one: alone or with other ranks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from holdfast.checkpoints.retain import Retention
from holdfast.clock import Clock
from holdfast.engine.node_tiers import NodeTiers
from holdfast.engine.tiers_of_run import Tiers, TiersOfRun, tiers_for
from holdfast.engine.together import Together, told_by_leader
from holdfast.errors import SetupError
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.node_places import node_tier
from holdfast.tiers.tier_list import recall_tiers
from holdfast.tiers.words import Tier, parse_tiers

log = logging.getLogger("holdfast")


def open_tiers(
    home: CheckpointStore, given: Sequence[str | Tier] | None, retention: Retention, clock: Clock,
    together: Together | None, limit: float, environ: Mapping[str, str],
) -> Tiers | None:  # fmt: skip
    """None where the run has its own folder and nothing else."""
    if together is None:
        tiers = tiers_for(home.where, given, environ)
        return TiersOfRun(home, tiers, retention, clock) if tiers else None
    recorded = told_by_leader(
        together.team, "recorded tiers", limit, lambda: [t.to_json() for t in recall_tiers(home.where).now]
    )
    # Without a word, as before: the newest checkpoint may lie on the nodes, and nowhere else.
    tiers = parse_tiers(given) if given is not None else tuple(Tier(**one) for one in recorded)
    if not tiers:
        return None
    if node_tier(tiers) is not None:
        return NodeTiers(home, tiers, retention, clock, together, limit, environ)
    if any(Tier(**one).is_node_local for one in recorded):
        log.warning("holdfast: what nodes kept before is not read; to go on from there, give that tier again")
    if tiers[0].kind != "home" or tiers[0].flush_every is not None:
        raise SetupError(
            f"several ranks cannot save into {tiers[0].location} first",
            hint='put "run" first, or a tier that is local to each node: ["/local/nvme", "partner", "run"]',
        )
    return TiersOfRun(home, tiers, retention, clock, leads=together.leads)
