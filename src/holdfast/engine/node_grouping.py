"""What rank 0 says at the start: which nodes protect each other, and what they do not survive."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from holdfast.engine.node_meeting import Nodes
from holdfast.redundancy.scheme import Scheme
from holdfast.redundancy.sets import Crowding, group_nodes

log = logging.getLogger("holdfast")
# Enough to recognise them by; a job may have thousands.
_SHOWN = 4


def say_grouping(nodes: Nodes, scheme: Scheme, outer: Sequence[str]) -> None:
    """A warning only where domains were named and one of them, lost as a whole, takes a set with it."""
    if scheme.kind == "single":
        return
    grouping = group_nodes(nodes.names, scheme, nodes.domains)
    sets = [" ".join(members) for members in grouping.sets]
    log.info("holdfast: nodes protect each other by %s: %s", scheme, _some(sets, " | "))
    places = {nodes.domains.get(node) for node in nodes.names}
    if len(places) == 1:
        if None not in places:
            # Nothing could be kept apart, which whoever named the domain knows.
            log.info("holdfast: all nodes are in one failure domain, %s", *places)
        return
    lost = [one for one in grouping.crowded if len(one.nodes) > scheme.failures]
    if lost:
        log.warning("holdfast: %s", _not_survived(lost, scheme, outer))


def _not_survived(lost: Sequence[Crowding], scheme: Scheme, outer: Sequence[str]) -> str:
    domains = list(dict.fromkeys(one.domain for one in lost))
    first = lost[0]
    then = (
        f"a restart then goes on from {' or '.join(outer)}" if outer else "no other tier would have it then"
    )
    return (
        f"{scheme} cannot keep the nodes of every failure domain apart: the loss of all of "
        f"{_some(domains, ' or of ')} is not survived ({_some(first.nodes, ', ')} are in {first.domain} and "
        f"in one set); {then}"
    )


def _some(words: Sequence[str], between: str) -> str:
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return between.join(words[:_SHOWN]) + more
