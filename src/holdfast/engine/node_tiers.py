"""The tiers of a run of several ranks whose nodes keep their own checkpoints.

A save is durable on all nodes when it counts. Behind it the nodes protect each other, some checkpoints go
outward, and older ones go. Restoring reads this node's files first, then those of other nodes, then the rest.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.retain import Retention, parse_keep
from holdfast.clock import Clock
from holdfast.engine.node_copies import NodeCopies
from holdfast.engine.node_grouping import say_grouping
from holdfast.engine.node_meeting import meet
from holdfast.engine.node_mending import NodeMending
from holdfast.engine.node_protection import Protection, scheme_for
from holdfast.engine.node_retention import tidy
from holdfast.engine.tier_words import say_fallback
from holdfast.engine.tiers_of_run import only_in_memory
from holdfast.engine.together import Together, told_by_leader
from holdfast.engine.writers import OnNodes, Writer
from holdfast.errors import HoldfastError
from holdfast.events import CheckpointProtected, Emit, ProtectFailed
from holdfast.format.manifest import Manifest
from holdfast.redundancy.scheme import Scheme
from holdfast.stores.base import Store
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.ladder import Ladder
from holdfast.tiers.lasting_choice import LastingChoice
from holdfast.tiers.named_tier import NamedTier
from holdfast.tiers.opening import lasting_tiers
from holdfast.tiers.tier_list import recall_tiers, remember_tiers
from holdfast.tiers.words import Tier

log = logging.getLogger("holdfast")
_CLOSE_SECONDS = 10.0


class NodeTiers:
    """`tiers` begin with the one that is local to each node; `home` is claimed, or joined, on every rank."""

    memory = None
    # Nodes let go together what rank 0 says.
    retention = None
    _choice: LastingChoice | None

    def __init__(
        self, home: CheckpointStore, tiers: Sequence[Tier], retention: Retention, clock: Clock,
        together: Together, limit: float, environ: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._together, self._team, self._limit = together, together.team, limit
        self._home, self._tier, self._clock = home, tiers[0], clock
        team = self._team
        is_restart = told_by_leader(team, "tiers", limit, lambda: bool(recall_tiers(home.where).now))
        self.nodes = meet(team, self._tier, home, limit, environ)
        try:
            scheme = scheme_for(self._tier, len(self.nodes.names), is_restart=is_restart)
            if team.leads:
                say_grouping(self.nodes, scheme, [tier.location for tier in tiers[1:]])
            self._copies = NodeCopies(self.nodes, home, tiers[1:], retention, clock, team, limit)
            # Only now: one that turns out to be another run's must not be read for ever.
            told_by_leader(team, "remembered", limit, lambda: bool(remember_tiers(home.where, tiers)))
        except BaseException:
            self.nodes.close()
            raise
        self.first: Store = self.nodes.mine
        self._protection = Protection(self.nodes, self._tier, scheme)
        self._rhythm = NodeRhythm(scheme, clock)
        self.mending = NodeMending(self.nodes, team, limit)
        self._keep = parse_keep(self._tier.keep if self._tier.keep is not None else 2).latest
        # What every node has committed since this process began, and what everybody restored.
        self._known: set[str] = set()
        self._retention, self._choice = retention, None
        self._told: Mapping[str, Any] = {}
        self._nodes_had_all = False

    @property
    def writer_epoch(self) -> int:
        return max(self._home.writer_epoch, self._copies.writer_epoch)

    def writer(self, together: Together | None) -> Writer:
        return OnNodes(self._team, self._together.ballot, self)

    # ---- restoring

    def ladder(self) -> Ladder:
        """This node, the others, and whatever lasts, in this order."""
        location, tiers = self._tier.location, list[NamedTier]()
        for node, store in self.nodes.stores.items():
            is_mine = node == self.nodes.me
            called = location if is_mine else f"{location} of {node}"
            tiers.append(NamedTier(called, store, partial=True, elsewhere=not is_mine))
        mine = {store.where: store for store in (self._home, *self._copies.stores.values())}
        for far in lasting_tiers(self._home.where, self._home.uuid):
            tiers.append(NamedTier(far.name, mine.get(far.store.where, far.store)))
        return Ladder(tiers, tell=say_fallback)

    def bytes_read(self, ladder: Ladder) -> dict[str, int]:
        """What all ranks together have read from each kind of tier. Every rank asks."""
        mine = json.dumps(dict(ladder.bytes_by_tier)).encode()
        total: dict[str, int] = {}
        for raw in self._team.gather("read", mine, self._limit):
            for name, count in json.loads(raw).items():
                kind = self._kind_of(name)
                total[kind] = total.get(kind, 0) + count
        near = (self._tier.location, self._kind_of(f"{self._tier.location} of any"))
        self._nodes_had_all = not any(count for kind, count in total.items() if kind not in near)
        return total

    def _kind_of(self, name: str) -> str:
        location = self._tier.location
        return f"{location} of other nodes" if name.startswith(f"{location} of ") else name

    # ---- saving: what each rank says, what rank 0 decides, what follows

    def says(self) -> dict[str, Any]:
        return {"node": self.nodes.me, **self._protection.says()} if self.nodes.acts else {}

    def decide(self, said: Sequence[Mapping[str, Any]], manifest: Manifest) -> dict[str, Any]:
        self._rhythm.hear(said)
        copies, lasting = self._copies.due(manifest)
        return {
            "protect": self._rhythm.wants_next,
            "spare": [*self._rhythm.spare, *self._kept_here(manifest)],
            "copies": copies,
            "lasting": lasting,
        }

    def _kept_here(self, manifest: Manifest) -> list[str]:
        """What the run's rules keep, where no tier lasts longer than the nodes: then they keep it."""
        if self._copies:
            return []
        if self._choice is None:
            self._choice = LastingChoice(self._retention)
            with contextlib.suppress(HoldfastError):
                self._choice.know(one.manifest for one in committed(self.nodes.mine) if one.manifest)
        self._choice.wants(manifest)
        return self._choice.kept

    def kept(self, told: Mapping[str, Any]) -> None:
        """The checkpoint that `committed` is about to hear of, as rank 0 decided."""
        self._told = told

    def start_draining(self, emit: Emit, resumed_from: str | None = None) -> None:
        """Copies outward begin, and what was restored is protected anew: a node may have been replaced."""
        self._rhythm.emit = emit
        self._copies.start(self._near(), emit, lambda: self.needed)
        if resumed_from is not None and self._nodes_had_all:
            name = resumed_from
            told = told_by_leader(self._team, "after the restart", self._limit, lambda: self._take_up(name))
            self._follow(name, told)

    def _near(self) -> Ladder:
        tiers = [
            NamedTier(node, store, partial=True, elsewhere=node != self.nodes.me)
            for node, store in self.nodes.stores.items()
        ]
        return Ladder(tiers, tell=say_fallback)

    def _take_up(self, name: str) -> dict[str, Any]:
        return {"protect": self._rhythm.wants_next, "copies": self._copies.lacking(name)}

    def committed(self, name: str, manifest: Manifest | None = None) -> None:
        told, self._told = self._told, {}
        self._follow(name, told)
        if self.nodes.acts:
            spare = {*self.needed, *told.get("spare", ()), name}
            tidy([self.nodes.mine, *self.nodes.left], self._known, self._keep, spare)

    def _follow(self, name: str, told: Mapping[str, Any]) -> None:
        self._known.add(name)
        if told.get("protect"):
            self._rhythm.pending = name
            if self.nodes.acts:
                self._protection.submit(name)
        self._copies.committed(name, told.get("copies", ()), told.get("lasting", ()))

    @property
    def needed(self) -> frozenset[str]:
        return self._copies.needed

    # ---- the end

    def close(self, limit: float, *, durable: bool = False) -> str | None:
        """`durable`: the last state is committed on all nodes; within `limit` it goes outward, too."""
        outward = False
        try:
            if durable and limit > 0:
                outward = self._bring_outward(limit)
        except HoldfastError as error:
            log.warning("holdfast: the nodes did not end together: %s", error)
        finally:
            self._copies.stop(0.0)
            self._protection.close(_CLOSE_SECONDS)
            self._copies.close()
            self.nodes.close()
        if outward and self._tier.kind == "memory" and self.nodes.acts:
            # Nobody needs it any more, and somebody needs the memory.
            for store in (self.nodes.mine, *self.nodes.left):
                shutil.rmtree(store.where, ignore_errors=True)
            # The run's own folder goes with the last of the nodes that share this machine.
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(self.nodes.mine.where))
        if not durable or outward or self._tier.kind != "memory" or not self._copies:
            return None
        return only_in_memory([*self._copies.stores])

    def _bring_outward(self, limit: float) -> bool:
        """The newest checkpoint to every tier, or where there is none, protected. Whether it is there."""
        team, end = self._team, self._clock.monotonic() + limit
        newest = max(self._known, default=None)
        told = told_by_leader(team, "last", limit, lambda: self._last(newest))
        if newest is None:
            return False
        self._copies.committed(newest, told["copies"])
        behind = self._copies.stop(limit)
        for tier in behind:
            log.warning(
                "holdfast: the newest checkpoint did not reach %s in time; the nodes keep it, and a restart "
                "copies it", tier,
            )  # fmt: skip
        if told["protect"] and self.nodes.acts:
            self._protection.submit(newest)
        if not self._copies and self.nodes.acts:
            self._protection.wait(max(end - self._clock.monotonic(), 0.0))
        # A node may take all of its time; those that were quicker wait for it.
        said = json.dumps({**self.says(), "behind": behind}).encode()
        heard = [json.loads(raw) for raw in team.gather("last", said, limit + _CLOSE_SECONDS)]
        if team.leads:
            self._rhythm.hear(heard)
        is_outward = bool(self._copies) and not any(one["behind"] for one in heard)
        if is_outward:
            # It lasts now, so its protection is called off, everywhere before anybody stops serving.
            self._protection.close(_CLOSE_SECONDS)
        else:
            self._protection.wait(max(end - self._clock.monotonic(), 0.0))
        team.gather("nobody reads", b"", limit + _CLOSE_SECONDS)
        return is_outward

    def _last(self, newest: str | None) -> dict[str, Any]:
        if newest is None:
            return {"copies": [], "protect": False}
        is_safe = newest in (self._rhythm.safe, self._rhythm.pending)
        return {"copies": self._copies.lacking(newest), "protect": not self._copies and not is_safe}


# ---- Rank 0's part: which checkpoint the nodes protect next, and which they must not let go meanwhile.
#
# One at a time, until every node has done its share. A newer one does not call it off: where saves come
# faster than protecting ends, none would ever be protected.


class NodeRhythm:
    def __init__(self, scheme: Scheme, clock: Clock) -> None:
        self._scheme = scheme
        self._clock = clock
        self.emit: Emit = lambda event: None
        # The newest that every node has done its share for, and the one that they are at.
        self.safe: str | None = None
        self.pending: str | None = None

    def hear(self, said: Sequence[Mapping[str, Any]]) -> None:
        """What the nodes said with a vote; ranks that act for no node say nothing."""
        nodes = [one for one in said if "protected" in one]
        common = set.intersection(*(set(one["protected"]) for one in nodes)) if nodes else set()
        newest = max(common, default="")
        if newest > (self.safe or ""):
            self.safe = newest
            self.emit(CheckpointProtected(time=self._clock.wall(), name=newest, scheme=str(self._scheme)))
        for one in nodes:
            for name, why in one["trouble"]:
                self.emit(ProtectFailed(time=self._clock.wall(), name=name, node=one["node"], error=why))
                if name == self.pending:
                    self.pending = None
        if self.pending in common or all(one["at"] != self.pending for one in nodes):
            # Done by all; or a node never began, because it did not hear that the save had succeeded.
            self.pending = None

    @property
    def wants_next(self) -> bool:
        return self._scheme.kind != "single" and self.pending is None

    @property
    def spare(self) -> list[str]:
        return [name for name in (self.safe, self.pending) if name is not None]
