"""Before ranks load a checkpoint from their nodes: what no node has is rebuilt from copies and parity."""

from __future__ import annotations

import json
import logging

from holdfast.checkpoints.find import Found
from holdfast.engine.node_meeting import Nodes
from holdfast.engine.node_protection import manifest_from
from holdfast.errors import CorruptCheckpoint, HoldfastError, StoreError
from holdfast.format.manifest import Manifest
from holdfast.ranks.team import Team
from holdfast.tiers.node_ranks import nodes_of_ranks
from holdfast.tiers.protect_members import files_dealt_to
from holdfast.tiers.rebuild import rebuild

log = logging.getLogger("holdfast")


class NodeMending:
    """Every rank calls `mend` equally often. `why` is what could not be mended the last time."""

    def __init__(self, nodes: Nodes, team: Team, limit: float) -> None:
        self.why = ""
        self._nodes = nodes
        self._team = team
        self._limit = limit

    def mend(self, found: Found, *, verify: bool) -> bool:
        """Whether anything was rebuilt, and all of it could be. `verify` looks at every byte that nodes hold,
        not only for files that are missing."""
        self.why = ""
        name, manifest = str(found.name), found.manifest
        sizes, everybody_knows = self._take_stock(name, manifest)
        try:
            of_rank = nodes_of_ranks(manifest) if manifest is not None else None
        except CorruptCheckpoint:
            return False
        if manifest is None or not everybody_knows or of_rank is None or not sizes:
            return False
        missing = {r.name for r in manifest.files if r.size not in sizes.get(r.name, ())}
        if not (missing or verify):
            return False
        if missing and self._team.leads:
            log.warning("holdfast: %d files of %s are on no node; rebuilding them", len(missing), name)
        wanted = files_dealt_to(self._nodes.me, self._nodes.names, manifest, of_rank)
        why = self._rebuild(name, wanted if verify else [file for file in wanted if file in missing])
        told = [raw.decode() for raw in self._team.gather("rebuilt", why.encode(), self._limit)]
        self.why = next((one for one in told if one), "")
        return not self.why

    def _take_stock(self, name: str, manifest: Manifest | None) -> tuple[dict[str, set[int]], bool]:
        """The sizes in which the nodes have each file, and whether every rank can read the manifest."""
        held: dict[str, list[int]] = {}
        if self._nodes.acts:
            for store in (self._nodes.mine, *self._nodes.left):
                try:
                    for file, size in store.held(name).items():
                        held.setdefault(file, []).append(size)
                except StoreError:
                    continue
        said = json.dumps([manifest is not None, held]).encode()
        heard = [json.loads(raw) for raw in self._team.gather("held", said, self._limit)]
        sizes: dict[str, set[int]] = {}
        for _, there in heard:
            for file, found in there.items():
                sizes.setdefault(file, set()).update(found)
        return sizes, all(knows for knows, _ in heard)

    def _rebuild(self, name: str, wanted: list[str]) -> str:
        if not self._nodes.acts or not wanted:
            return ""
        try:
            done = rebuild(manifest_from(self._nodes, name), self._nodes.me, self._nodes.stores, wanted)
        except HoldfastError as error:
            return f"{self._nodes.me}: {error.message}"
        log.info(
            "holdfast: %s of %s: %d copied, %d from parity",
            name, self._nodes.me, len(done.copied), len(done.from_parity),
        )  # fmt: skip
        return ""
