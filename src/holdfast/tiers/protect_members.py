"""Which node wrote which files of a checkpoint, and which nodes protect each other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.errors import SetupError
from holdfast.format.manifest import FileRecord, Manifest
from holdfast.redundancy.record import Member, MemberFile, ParityRecord, default_code
from holdfast.redundancy.sets import Grouping

_RANK = re.compile(r".*-r([0-9]{5,})", re.ASCII)


def rank_of(file: str) -> int:
    """The rank that a file's name carries; 0 for a file that is nobody's own."""
    match = _RANK.fullmatch(file.rpartition(".")[0])
    return int(match[1]) if match else 0


def files_by_node(manifest: Manifest, node_of_rank: Sequence[str]) -> dict[str, tuple[FileRecord, ...]]:
    """The files of each node, by the names their ranks gave them. A node without files is listed, too."""
    found: dict[str, list[FileRecord]] = {node: [] for node in node_of_rank}
    for record in manifest.files:
        rank = rank_of(record.name)
        if rank >= len(node_of_rank):
            raise SetupError(
                f"{record.name} of {manifest.name} belongs to rank {rank}, and there are {len(node_of_rank)}",
                hint="give the nodes of the ranks that wrote the checkpoint, not of those that read it",
            )
        found[node_of_rank[rank]].append(record)
    return {node: tuple(records) for node, records in found.items()}


def files_dealt_to(
    node: str, nodes: Sequence[str], manifest: Manifest, node_of_rank: Sequence[str]
) -> list[str]:
    """What `node` looks after among the `nodes` of now: the files of the node whose name it bears, and some
    of those whose node is no more. Every file has one that looks after it."""
    owned = files_by_node(manifest, node_of_rank)
    gone = [name for name in owned if name not in nodes]
    mine = [node, *(name for number, name in enumerate(gone) if nodes[number % len(nodes)] == node)]
    return [record.name for name in mine for record in owned.get(name, ())]


@dataclass(frozen=True)
class Members:
    """The nodes of a job as one checkpoint sees them. Names are logical: a replacement bears the name of the
    node whose place it takes."""

    grouping: Grouping
    files: Mapping[str, tuple[FileRecord, ...]]

    def kept_for(self, node: str) -> str | None:
        """The node whose files `node` keeps copies of, under the scheme partner."""
        if self.grouping.scheme.kind != "partner":
            return None
        ring = self.grouping.set_of(node)
        return ring[ring.index(node) - 1]

    def parity_record(self, node: str) -> ParityRecord | None:
        """What describes the parity of this node's set, under the schemes xor and rs."""
        scheme = self.grouping.scheme
        if scheme.kind not in ("xor", "rs"):
            return None
        members = tuple(
            Member(name, tuple(MemberFile(record.name, record.size) for record in self.files.get(name, ())))
            for name in self.grouping.set_of(node)
        )
        return ParityRecord(scheme=scheme, code=default_code(scheme), members=members)
