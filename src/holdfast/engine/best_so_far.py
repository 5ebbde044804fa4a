"""Whether what was just reported belongs to the best that `keep=` asks for: then this very state is saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.retention import Best, would_be_among_best
from holdfast.errors import StoreError
from holdfast.policy.observation import Decision
from holdfast.stores.base import Store


def best_so_far(best: Best, metrics: Mapping[str, float], stores: Iterable[Store]) -> Decision:
    """Compared with what the stores hold: a save that failed counts for nothing."""
    saved = {}
    for store in stores:
        try:
            saved.update({found.name: found.manifest for found in committed(store) if found.manifest})
        except StoreError:
            continue  # One save too many, where this place cannot be read.
    if not would_be_among_best(metrics, best, saved.values()):
        return Decision(False, "others are better")
    place = "the best" if best.count == 1 else f"among the best {best.count}"
    return Decision(True, f"{best.metric} {metrics[best.metric]:.4g} is {place}")
