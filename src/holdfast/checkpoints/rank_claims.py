"""What each rank says about the tensors it holds together with others, and what follows for the checkpoint.

Ranks that claim to hold something alike must agree, or there is no commit: it is written once, and after a
restart all of them would hold the writer's. What groups of ranks hold under the same name need not be equal;
whether it is decides if another number of ranks can ever load it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import SaveError
from holdfast.format.rank_sets import parse_ranks

# What a manifest says of an object whose parameters are not held by all ranks together.
ALIKE = "alike"


@dataclass(frozen=True)
class RankClaims:
    """One rank's words, by the ranks of the group. `sample` is there only now and then."""

    divisions: Mapping[str, str] = field(default_factory=dict)
    sample: Mapping[str, str] = field(default_factory=dict)
    # By tracked object and group: a digest of the parameters that this rank wrote for the group.
    contents: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "divisions": dict(self.divisions),
            "sample": dict(self.sample),
            "contents": {key: dict(groups) for key, groups in self.contents.items()},
        }


def require_agreement(claims: Sequence[RankClaims]) -> None:
    """SaveError unless the ranks of every group say the same of it. `claims` are by rank."""
    for ranks in sorted({ranks for claim in claims for ranks in claim.divisions}):
        members = [rank for rank in parse_ranks(ranks) if rank < len(claims)]
        first = claims[members[0]] if members else RankClaims()
        for rank in members:
            if claims[rank].divisions.get(ranks) != first.divisions.get(ranks):
                raise SaveError(
                    f"ranks {members[0]} and {rank} hold different tensors where both are kept equal by "
                    f"DistributedDataParallel on ranks {ranks}",
                    hint="every rank of a group must track the same objects, built alike",
                )
        sampled = {rank: claims[rank].sample[ranks] for rank in members if ranks in claims[rank].sample}
        for rank, sample in sampled.items():
            if sample != next(iter(sampled.values())):
                raise SaveError(
                    f"ranks {next(iter(sampled))} and {rank} hold different values in parameters that "
                    f"DistributedDataParallel is to keep equal on ranks {ranks}; after a restart all would "
                    "hold one rank's",
                    hint="if they are meant to differ (local SGD, init_sync=False), track the module inside, "
                    "Run(model=ddp.module): each rank's own is saved then; or name single parameters in "
                    "_ddp_params_and_buffers_to_ignore",
                )


def alike_by_object(claims: Sequence[RankClaims]) -> dict[str, bool]:
    """Whether every group holds the same parameters as every other, by object; nothing about objects that all
    ranks hold together."""
    return {key: _is_alike(key, claims) for key in {key for claim in claims for key in claim.contents}}


def _is_alike(key: str, claims: Sequence[RankClaims]) -> bool:
    sizes: set[frozenset[int]] = set()
    # Member by member: in groups of one size, the same member writes the same blocks.
    by_member: dict[tuple[int, int], set[str]] = defaultdict(set)
    for rank, claim in enumerate(claims):
        groups = {parse_ranks(ranks): digest for ranks, digest in claim.contents.get(key, {}).items()}
        for ranks, digest in groups.items():
            by_member[len(ranks), ranks.index(rank)].add(digest)
        if groups:
            # Groups of different sizes cannot be compared: all ranks must be in the same kinds of them.
            sizes.add(frozenset(map(len, groups)))
    return len(sizes) == 1 and all(len(digests) == 1 for digests in by_member.values())
