"""From the nodes outward, behind training: each node copies its own files, rank 0 commits when all are there.

Rank 0 says with each checkpoint where it goes, so that every node copies the same ones. A bucket is filled by
rank 0 alone, which reads what it lacks from the other nodes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.retain import Retention, parse_keep
from holdfast.clock import Clock
from holdfast.engine.node_meeting import Nodes
from holdfast.engine.together import claim_together, told_by_leader
from holdfast.errors import HoldfastError, SaveError, StoreUnavailable
from holdfast.events import Emit, Event, FlushFailed, FlushSkipped
from holdfast.format.manifest import Manifest
from holdfast.ranks.line import SLICE_SECONDS, Line
from holdfast.ranks.store import RankStore
from holdfast.ranks.team import Team
from holdfast.stores.base import Store
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.copying import Copier, SourceLost
from holdfast.tiers.flusher import Flusher, FlushTier, Share
from holdfast.tiers.ladder import Ladder
from holdfast.tiers.lasting_choice import LastingChoice
from holdfast.tiers.node_ranks import nodes_of_ranks
from holdfast.tiers.opening import open_tier
from holdfast.tiers.protect_members import files_dealt_to
from holdfast.tiers.words import Tier

log = logging.getLogger("holdfast")
_YES, _NO = b"+", b"-"
_WHY = "/why"


@dataclass
class _Outer:
    tier: Tier
    store: Store
    line: Line | None
    choice: LastingChoice
    flusher: Flusher | None = None
    commits: int = 0


class NodeCopies:
    """The tiers behind the nodes' own. Every rank makes one; only ranks that act for a node copy."""

    def __init__(
        self, nodes: Nodes, home: CheckpointStore, tiers: Sequence[Tier], retention: Retention, clock: Clock,
        team: Team, limit: float,
    ) -> None:  # fmt: skip
        self._nodes = nodes
        self._team = team
        self._limit = limit
        self._clock = clock
        self._retention = retention
        self._claimed: list[CheckpointStore] = []
        self._outer: dict[str, _Outer] = {}
        for tier in tiers:
            store = home if tier.kind == "home" else open_tier(tier, home.where, home.uuid)
            self._claim(tier, store, home)
            line = Line(team.connect().scoped("copies")) if nodes.acts else None
            retention_there = parse_keep(tier.keep) if tier.keep is not None else retention
            choice = LastingChoice(retention_there if team.leads else None)
            self._outer[tier.location] = _Outer(tier, store, line, choice)

    def _claim(self, tier: Tier, store: CheckpointStore, home: CheckpointStore) -> None:
        if store is home:
            return
        what, epoch = f"writer of {tier.location}", home.writer_epoch
        if tier.kind == "objects":
            told_by_leader(self._team, what, self._limit, lambda: store.claim(at_least=epoch))
        else:
            claim_together(store, self._team, self._limit, what=what, at_least=epoch)
        if tier.kind != "objects" or self._team.leads:
            self._claimed.append(store)

    def __bool__(self) -> bool:
        return bool(self._outer)

    @property
    def writer_epoch(self) -> int:
        return max((store.writer_epoch for store in self._claimed), default=0)

    @property
    def stores(self) -> Mapping[str, Store]:
        return {location: outer.store for location, outer in self._outer.items()}

    @property
    def needed(self) -> frozenset[str]:
        """Checkpoints that this node must keep until they have been copied outward."""
        flushers = [outer.flusher for outer in self._outer.values() if outer.flusher is not None]
        return frozenset[str]().union(*(flusher.needed for flusher in flushers))

    def start(self, ladder: Ladder, emit: Emit, spare: Callable[[], Collection[str]]) -> None:
        leads = self._team.leads
        for outer in self._outer.values():
            is_shared = outer.tier.kind != "objects"
            if not self._nodes.acts or not (is_shared or leads):
                continue
            if leads:
                self._see_what_lasts(outer)
            tier, keep = outer.tier, outer.tier.keep
            retention = parse_keep(keep) if keep is not None else self._retention
            rate = tier.bytes_per_second
            if rate is not None and is_shared:
                # What the user allows is for all nodes together.
                rate = max(rate // len(self._nodes.names), 1)
            outer.flusher = Flusher(
                # Each that is told is copied: what is due when, rank 0 decides.
                FlushTier(tier.location, outer.store, 1, rate, retention if leads else None),
                ladder,
                emit=emit if leads else self._voter(outer),
                clock=self._clock,
                share=Share(self._my_files, self._publisher(outer)) if is_shared else None,
                spare=spare,
            )

    def _see_what_lasts(self, outer: _Outer) -> None:
        try:
            outer.choice.know(found.manifest for found in committed(outer.store) if found.manifest)
        except HoldfastError as error:
            log.warning("holdfast: cannot see what is in %s: %s", outer.tier.location, error)

    # ---- which, decided by rank 0

    def due(self, manifest: Manifest) -> tuple[list[str], list[str]]:
        """The tiers that the checkpoint which is about to be committed goes to; and of them those whose rules
        keep it, so that the nodes must not let it go before it is there."""
        lasting = [where for where, outer in self._outer.items() if outer.choice.wants(manifest)]
        due = [
            where
            for where, outer in self._outer.items()
            if where in lasting or self._is_due(outer.tier.flush_every, outer)
        ]
        return due, lasting

    def _is_due(self, every: int | None, outer: _Outer) -> bool:
        if every is not None:
            return (outer.commits + 1) % every == 0
        return outer.flusher is None or not outer.flusher.needed

    def lacking(self, name: str) -> list[str]:
        """The tiers that do not have this checkpoint."""
        lacking = []
        for location, outer in self._outer.items():
            try:
                if name not in outer.store.names():
                    lacking.append(location)
            except HoldfastError as error:
                log.warning("holdfast: cannot see what %s lacks: %s", location, error)
        return lacking

    # ---- copying, on every node

    def committed(self, name: str, due: Collection[str], lasting: Collection[str] = ()) -> None:
        for location, outer in self._outer.items():
            outer.commits += 1
            if location in due and outer.flusher is not None:
                outer.flusher.committed(name, pin=location in lasting)

    def stop(self, limit: float) -> list[str]:
        """Finish what is due within `limit` seconds. The tiers that did not get it."""
        flushers = [outer.flusher for outer in self._outer.values() if outer.flusher is not None]
        end = self._clock.monotonic() + limit
        for flusher in flushers:
            flusher.begin_stop()
        return [f.tier.name for f in flushers if not f.end_stop(end - self._clock.monotonic())]

    def close(self) -> None:
        for outer in self._outer.values():
            if outer.line is not None:
                outer.line.close()
        for store in self._claimed:
            store.release()

    def _my_files(self, manifest: Manifest) -> list[str]:
        of_rank = nodes_of_ranks(manifest)
        if of_rank is None:
            raise SourceLost(f"{manifest.name} does not say which nodes have its files")
        return files_dealt_to(self._nodes.me, self._nodes.names, manifest, of_rank)

    def _key(self, outer: _Outer, name: str, node: str) -> str:
        return f"{outer.tier.location}/{name}/{node}"

    def _publisher(self, outer: _Outer) -> Callable[[Copier, str], None]:
        def publish(copier: Copier, name: str) -> None:
            if self._team.leads:
                self._count(outer, name)
                copier.publish(name)
                self._forget(outer, name)
            else:
                copier.forget(name)
                self._vote(outer, name, _YES)

        return publish

    def _voter(self, outer: _Outer) -> Emit:
        def emit(event: Event) -> None:
            # Nobody's journal but rank 0's; what it must know is that it waits in vain, and why.
            with contextlib.suppress(StoreUnavailable):
                if isinstance(event, FlushSkipped):
                    self._vote(outer, event.name, _NO + event.why.encode())
                elif isinstance(event, FlushFailed):
                    self._vote(outer, event.name, event.error.encode(), _WHY)

        return emit

    def _vote(self, outer: _Outer, name: str, vote: bytes, what: str = "") -> None:
        assert outer.line is not None
        key = self._key(outer, name, self._nodes.me) + what
        outer.line.ask(lambda store: store.set(key, vote), self._limit)

    def _count(self, outer: _Outer, name: str) -> None:
        assert outer.line is not None
        others = [node for node in self._nodes.names if node != self._nodes.me]
        keys = [self._key(outer, name, node) for node in others]
        votes = outer.line.ask(lambda store: store.get_many(keys, self._limit), self._limit)
        if votes is None:
            missing = outer.line.ask(
                lambda store: [_why_not(store, n, k) for n, k in zip(others, keys, strict=True)], self._limit
            )
            raise SaveError(
                f"not every node has copied {name} to {outer.tier.location} within {self._limit:g} s: "
                + "; ".join(filter(None, missing))
            )
        for node, vote in zip(others, votes, strict=True):
            if vote[:1] == _NO:
                raise SourceLost(f"{node} cannot copy it: {vote[1:].decode()}")

    def _forget(self, outer: _Outer, name: str) -> None:
        assert outer.line is not None
        for node in self._nodes.names:
            key = self._key(outer, name, node)
            for what in ("", _WHY):
                outer.line.tell(lambda store, key=key + what: store.delete(key))  # type: ignore[misc]


def _why_not(store: RankStore, node: str, key: str) -> str:
    """Empty if it has voted after all."""
    if store.check([key]):
        return ""
    why = store.get(key + _WHY, SLICE_SECONDS) if store.check([key + _WHY]) else None
    return f"{node}: {'no word from it' if why is None else why.decode()}"
