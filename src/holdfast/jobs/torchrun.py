"""torchrun's restarts: what its workers' next generation needs in order to find each other.

Since torch 2.6 the agent keeps one store for all generations of its workers, with their keys and no prefix by
generation. A rank that asks before its peer has answered finds the address of a dead process, and ends or
waits out its limit; so `--max-restarts` restarts now and then, or not at all, with any program. With the
variable below every generation has a store of its own. A rendezvous of the kind "static", which is what
torchrun takes when no other is named, does not know that variable.
"""

from __future__ import annotations

from collections.abc import Mapping

OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


def why_restarts_may_hang(environ: Mapping[str, str]) -> str | None:
    """What to tell a worker whose launcher promises restarts; None if they will work."""
    restarts = environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or not restarts.isdigit() or int(restarts) == 0:
        return None
    return (
        "torchrun may hang when it restarts these workers: they would read the addresses of dead ones. "
        f"Start it with {OWN_STORE}=1 and --standalone (one node) or --rdzv-backend=c10d; see docs/ranks.md"
    )
