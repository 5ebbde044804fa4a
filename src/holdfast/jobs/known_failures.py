"""What the surroundings say about how often this job will be interrupted, before it ever was."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.jobs.spot_machine import Spot
from holdfast.policy.belief import Hint

# Preemptible instances; published traces range from one preemption of a node in 0.7 h to one in 17 h.
SPOT_NODE_SECONDS = 4 * 3600.0
SPOT_WITHIN = 4.0


def what_is_known(nodes: int, spot: Spot, environ: Mapping[str, str]) -> tuple[Hint, ...]:
    """Hints for the belief of a job on `nodes` nodes. `spot` is the user's word."""
    del environ
    if isinstance(spot, str) and spot.partition("@")[0] in ("aws", "gcp", "azure"):
        return (Hint(SPOT_NODE_SECONDS / nodes, f"spot machines of {spot}", within=SPOT_WITHIN),)
    return ()
