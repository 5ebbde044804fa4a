"""Which nodes protect each other: sets across failure domains, so that what dies together is kept apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.errors import SetupError
from holdfast.redundancy.scheme import Scheme, parse_scheme


@dataclass(frozen=True)
class Crowding:
    """A set that holds several nodes of one failure domain, because there was no other way."""

    domain: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Grouping:
    """The sets of a job. `crowded` lists what could not be kept apart; empty is good."""

    scheme: Scheme
    sets: tuple[tuple[str, ...], ...]
    crowded: tuple[Crowding, ...]

    @property
    def survives_any_domain(self) -> bool:
        """Whether losing one whole failure domain, whichever it is, loses no data."""
        if self.scheme.failures == 0:
            return False
        return all(len(crowding.nodes) <= self.scheme.failures for crowding in self.crowded)

    def set_of(self, node: str) -> tuple[str, ...]:
        return next(members for members in self.sets if node in members)


def domain_key(node: str, domains: Mapping[str, str] | None) -> tuple[str, str]:
    """What a node dies with. A rack must not be mistaken for a node that happens to have the same name."""
    return ("named", domains[node]) if domains and node in domains else ("node", node)


def group_nodes(
    nodes: Sequence[str], scheme: str | Scheme, domains: Mapping[str, str] | None = None
) -> Grouping:
    """Cut `nodes` into sets of at least the scheme's size, as many and as equal as that allows, with no two
    nodes of one domain in a set where it can be avoided. 17 nodes in sets of 8 make 9 + 8, as in redset.

    `domains` maps nodes to what they share: a rack, a power supply. A node it leaves out stands for itself.
    """
    chosen = parse_scheme(scheme)
    if len(set(nodes)) != len(nodes):
        twice = next(node for node, count in Counter(nodes).items() if count > 1)
        raise SetupError(f"node {twice!r} is listed twice")
    if len(nodes) < chosen.set_size:
        raise SetupError(
            f"{chosen} needs sets of {chosen.set_size} nodes and there are {len(nodes)}",
            hint=_what_fits(chosen, len(nodes)),
        )
    domain_of = {node: domain_key(node, domains) for node in nodes}
    count = len(nodes) // chosen.set_size
    # Dealt out domain by domain like cards: no set gets more of a domain than its even share, rounded up.
    size_of = Counter(domain_of.values())
    first_seen = {domain: at for at, domain in reversed(list(enumerate(domain_of.values())))}
    dealt = sorted(nodes, key=lambda node: (-size_of[domain_of[node]], first_seen[domain_of[node]]))
    sets = tuple(tuple(dealt[start::count]) for start in range(count))
    crowded = []
    for members in sets:
        for domain, together in Counter(domain_of[node] for node in members).items():
            if together > 1:
                inside = tuple(node for node in members if domain_of[node] == domain)
                crowded.append(Crowding(domain[1], inside))
    return Grouping(chosen, sets, () if chosen.kind == "single" else tuple(crowded))


def _what_fits(scheme: Scheme, count: int) -> str:
    fitting = []
    if count > scheme.failures and scheme.kind == "rs":
        fitting.append(f"rs:{count - scheme.failures}+{scheme.failures}")
    if count > 2:
        fitting.append(f"xor:{count}")
    if count >= 2:
        fitting.append("partner")
    fitting.append("single (survives a killed process, no lost node)")
    return f"what fits {count} nodes: {', '.join(fitting)}"
