"""The oracle: which nodes' data is gone after a loss, and how often m lost nodes lose nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from math import comb

import numpy as np

from holdfast.redundancy.scheme import Scheme, parse_scheme
from holdfast.redundancy.sets import Grouping, domain_key, group_nodes


def extra_space(scheme: Scheme, set_size: int | None = None) -> float:
    """What a node of such a set stores for others, as a share of its own data: 0.33 for rs:6+2."""
    members = scheme.set_size if set_size is None else set_size
    if scheme.kind == "partner":
        return 1.0
    return scheme.failures / (members - scheme.failures)


def beyond_repair(scheme: Scheme, members: Sequence[str], lost: Collection[str]) -> tuple[str, ...]:
    """The lost members of one set whose data cannot be rebuilt from those that are left."""
    gone = [member for member in members if member in lost]
    if scheme.kind == "partner":
        # Each member's copy lies with its right neighbour.
        right = dict(zip(members, [*members[1:], *members[:1]], strict=True))
        return tuple(member for member in gone if right[member] in lost)
    return tuple(gone) if len(gone) > scheme.failures else ()


def unrecoverable(grouping: Grouping, lost: Collection[str]) -> tuple[str, ...]:
    """The nodes whose data no other node can give back after all of `lost` are gone."""
    return tuple(node for members in grouping.sets for node in beyond_repair(grouping.scheme, members, lost))


def surviving_share(scheme: Scheme, set_sizes: Iterable[int], losses: int) -> float:
    """The share of all ways to lose `losses` nodes at once that lose no data. Exact, for any size of job."""
    # The ways to lose m nodes harmlessly are the coefficients of a product over the sets.
    ways, nodes = [1], 0
    for size in set_sizes:
        ways = _product(ways, _harmless_losses(scheme, size), losses)
        nodes += size
    return (ways[losses] if losses < len(ways) else 0) / comb(nodes, losses) if losses <= nodes else 0.0


def surviving_share_of_domains(
    grouping: Grouping, domains: Mapping[str, str], losses: int, *, most_cases: int = 100_000, seed: int = 0
) -> float:
    """The same for whole failure domains lost at once: every case where there are few, else a sample."""
    inside: dict[tuple[str, str], list[str]] = {}
    for members in grouping.sets:
        for node in members:
            inside.setdefault(domain_key(node, domains), []).append(node)
    names = list(inside)
    if losses > len(names):
        return 0.0
    cases: Iterable[Sequence[int]]
    if comb(len(names), losses) <= most_cases:
        cases, total = combinations(range(len(names)), losses), comb(len(names), losses)
    else:
        rng, total = np.random.default_rng(seed), most_cases
        cases = (rng.choice(len(names), losses, replace=False).tolist() for _ in range(total))
    survived = sum(
        not unrecoverable(grouping, {node for at in case for node in inside[names[at]]}) for case in cases
    )
    return survived / total


def survival_table(schemes: Sequence[str | Scheme], nodes: int, most_losses: int = 4) -> str:
    """The table of docs/redundancy.md for a job of `nodes` nodes, as Markdown."""
    head = ["scheme", "sets", "extra space", *(f"{m} lost" for m in range(1, most_losses + 1))]
    lines = [head, ["---"] * len(head)]
    for scheme in map(parse_scheme, schemes):
        sizes = [len(members) for members in group_nodes([str(n) for n in range(nodes)], scheme).sets]
        # Nodes of small sets store more; what a full node disk cares about is the most.
        space = f"{max(extra_space(scheme, size) for size in sizes):.0%}"
        shares = [f"{surviving_share(scheme, sizes, m):.1%}" for m in range(1, most_losses + 1)]
        lines.append([str(scheme), _sizes_text(sizes), space, *shares])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _harmless_losses(scheme: Scheme, size: int) -> list[int]:
    """Entry m: the ways to lose m members of one set and no data."""
    if scheme.kind == "partner":
        # Choices of m from a ring of `size` with no two adjacent (Kaplansky).
        return [1] + [size * comb(size - m, m) // (size - m) for m in range(1, size // 2 + 1)]
    return [comb(size, m) for m in range(scheme.failures + 1)]


def _product(left: Sequence[int], right: Sequence[int], highest: int) -> list[int]:
    result = [0] * min(len(left) + len(right) - 1, highest + 1)
    for i, a in enumerate(left):
        for j, b in enumerate(right[: highest + 1 - i]):
            result[i + j] += a * b
    return result


def _sizes_text(sizes: Sequence[int]) -> str:
    counted = [(sizes.count(size), size) for size in sorted(set(sizes), reverse=True)]
    return " + ".join(f"{count} of {size}" for count, size in counted)
