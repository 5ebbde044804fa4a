"""A node's part in protecting checkpoints, behind training: copies or parity for the others of its set."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any

from holdfast.engine.node_meeting import Nodes
from holdfast.errors import CorruptCheckpoint, HoldfastError, SetupError, StoreError, StoreNotFound
from holdfast.format.manifest import FileRecord, parse_manifest
from holdfast.redundancy.scheme import PARTNER, SINGLE, Scheme, parse_scheme
from holdfast.redundancy.sets import group_nodes
from holdfast.tiers.bandwidth import Bandwidth
from holdfast.tiers.node_ranks import nodes_of_ranks
from holdfast.tiers.protect import Protected, protect
from holdfast.tiers.protect_members import Members, files_by_node
from holdfast.tiers.protect_worker import Protector
from holdfast.tiers.rebuild import rebuild
from holdfast.tiers.words import Tier

log = logging.getLogger("holdfast")
# Only the newest ones matter, and they are said with every save.
_REMEMBERED = 4


def scheme_for(tier: Tier, nodes: int, *, is_restart: bool) -> Scheme:
    """As the user wrote it. Where a restart has too few nodes for it, whatever fits: a run that lost nodes
    must go on, and says so."""
    scheme = parse_scheme(tier.protect or "single")
    try:
        group_nodes([str(number) for number in range(nodes)], scheme)
    except SetupError as error:
        if not is_restart:
            raise
        fits = PARTNER if nodes > 1 else SINGLE
        log.warning("holdfast: %s; going on with %s", error.message, fits)
        return fits
    return scheme


class Protection:
    """Of one node. `submit` what all nodes committed; `says` is what rank 0 hears with the next vote."""

    def __init__(self, nodes: Nodes, tier: Tier, scheme: Scheme) -> None:
        self._nodes = nodes
        self._scheme = scheme
        self._bandwidth = Bandwidth(tier.bytes_per_second)
        self._lock = threading.Lock()
        self._protected: deque[str] = deque(maxlen=_REMEMBERED)
        self._trouble: deque[tuple[str, str]] = deque(maxlen=_REMEMBERED)
        self._at: str | None = None
        self._worker = Protector(self._do_my_share, self._tell)

    def submit(self, name: str) -> None:
        if self._scheme.kind != "single":
            with self._lock:
                self._at = name
            self._worker.submit(name)

    def wait(self, limit: float) -> bool:
        return self._worker.wait(limit)

    def close(self, limit: float) -> None:
        self._worker.close(limit)

    def says(self) -> dict[str, Any]:
        with self._lock:
            said = {
                "protected": list(self._protected),
                "trouble": [list(one) for one in self._trouble],
                "at": self._at,
            }
            self._trouble.clear()
        return said

    # ---- on its thread

    def _do_my_share(self, name: str, cancel: threading.Event) -> Protected:
        nodes = self._nodes
        data = manifest_from(nodes, name)
        manifest = parse_manifest(data)
        of_rank = nodes_of_ranks(manifest)
        if of_rank is None or set(of_rank) != set(nodes.names):
            raise SetupError(
                f"{name} was saved by other nodes than those that are here now",
                hint="the next checkpoint is protected by these",
            )
        files = files_by_node(manifest, of_rank)
        if not self._is_settled_here(name, files[nodes.me]):
            # This node takes the place of a lost one: first of all it gets that one's own files.
            rebuild(
                data, nodes.me, nodes.stores, [record.name for record in files[nodes.me]],
                bandwidth=self._bandwidth, cancel=cancel,
            )  # fmt: skip
        grouping = group_nodes(list(dict.fromkeys(of_rank)), self._scheme, nodes.domains)
        members = Members(grouping, files)
        return protect(name, nodes.me, nodes.stores, members, bandwidth=self._bandwidth, cancel=cancel)

    def _is_settled_here(self, name: str, files: tuple[FileRecord, ...]) -> bool:
        try:
            held = self._nodes.mine.held(name)
            self._nodes.mine.manifest(name)
        except (StoreError, CorruptCheckpoint):
            return False
        return all(held.get(record.name) == record.size for record in files)

    def _tell(self, name: str, outcome: Protected | HoldfastError) -> None:
        with self._lock:
            if self._at == name:
                self._at = None
            if isinstance(outcome, Protected):
                self._protected.append(name)
                return
            self._trouble.append((name, outcome.message))
        log.warning("holdfast: %s is not protected against the loss of nodes: %s", name, outcome)


def manifest_from(nodes: Nodes, name: str) -> bytes:
    """The manifest of a checkpoint from the nearest node that has it whole."""
    why: HoldfastError = StoreNotFound(f"no node has a checkpoint {name}")
    for store in nodes.stores.values():
        try:
            return store.manifest(name)
        except StoreNotFound:
            continue
        except (StoreError, CorruptCheckpoint) as error:
            why = error
    raise why
