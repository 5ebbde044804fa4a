"""The tiers of an open run: where a save goes first, what follows behind, and where to restore from."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.checkpoints.retain import Retention, parse_keep
from holdfast.clock import Clock
from holdfast.engine.load_together import Mending
from holdfast.engine.tier_words import say_fallback
from holdfast.engine.together import Together
from holdfast.engine.writers import Alone, Everybody, Writer
from holdfast.errors import SetupError, StoreDenied, StoreError
from holdfast.events import Emit
from holdfast.format.manifest import Manifest
from holdfast.jobs.heartbeat import VARIABLE as HEARTBEAT
from holdfast.stores.base import Store
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.drain import Drain
from holdfast.tiers.flusher import FlushTier
from holdfast.tiers.forgotten_memory import give_back_what_lasts
from holdfast.tiers.ladder import Ladder
from holdfast.tiers.memory import MemoryTier
from holdfast.tiers.named_tier import NamedTier
from holdfast.tiers.opening import open_tier, readable_tiers
from holdfast.tiers.tier_list import TierList, recall_tiers, remember_tiers
from holdfast.tiers.words import Tier, parse_tiers

log = logging.getLogger("holdfast")


class Tiers(Protocol):
    """What a session asks of the tiers of its run, whoever writes into them."""

    @property
    def first(self) -> Store: ...
    @property
    def retention(self) -> Retention | None:
        """What `first` keeps; None where that is looked after elsewhere."""
        ...

    @property
    def memory(self) -> MemoryTier | None: ...
    @property
    def writer_epoch(self) -> int: ...
    @property
    def needed(self) -> frozenset[str]: ...
    @property
    def mending(self) -> Mending | None: ...

    def writer(self, together: Together | None) -> Writer: ...
    def ladder(self) -> Ladder: ...
    def bytes_read(self, ladder: Ladder) -> dict[str, int]: ...
    def start_draining(self, emit: Emit, resumed_from: str | None = None) -> None: ...
    def committed(self, name: str, manifest: Manifest | None = None) -> None: ...
    def close(self, limit: float, *, durable: bool = False) -> str | None:
        """Why the last state will not last, though it was committed: it is in memory alone."""
        ...


class TiersOfRun:
    """`home` is the run's own folder, claimed. `first` is where a save must be durable to count.

    Of several ranks, those that do not lead only read: rank 0 copies outward."""

    mending = None

    def __init__(
        self, home: CheckpointStore, tiers: Sequence[Tier], retention: Retention, clock: Clock,
        *, leads: bool = True,
    ) -> None:  # fmt: skip
        _refuse_what_one_process_cannot(tiers)
        self.home = home
        self._leads = leads
        self.memory: MemoryTier | None = None
        self._clock = clock
        self._retention = retention
        self.retention: Retention | None = retention
        self._claimed: list[CheckpointStore] = []
        self._outer: list[tuple[Tier, Store]] = []
        self._drain: Drain | None = None
        self._ladder: Ladder | None = None
        try:
            self.first: Store = self._open(tiers)
            if leads:
                # Only now: one that turns out to be another run's must not be read for ever.
                remember_tiers(home.where, tiers)
        except BaseException:
            self.close(0.0)
            raise

    def _open(self, tiers: Sequence[Tier]) -> Store:
        home, uuid = self.home, self.home.uuid
        first: Store | None = None
        for tier in tiers:
            if tier.kind == "memory":
                for path in give_back_what_lasts(uuid, wall=self._clock.wall()):
                    log.info("holdfast: the memory of a run that ended is given back: %s", path)
                self.memory = self._claim_memory()
                continue
            store = home if tier.kind == "home" else open_tier(tier, home.where, uuid)
            if self._leads and store is not home:
                store.claim(at_least=home.writer_epoch)
                self._claimed.append(store)
            if first is None and tier.flush_every is None:
                first = store
                if tier.keep is not None:
                    self.retention = parse_keep(tier.keep)
            else:
                self._outer.append((tier, store))
        if first is None:
            # Every lasting tier gets only some of the checkpoints: the others live in memory alone.
            first, self.retention = self.memory, None
        if first is None:
            raise SetupError(
                "every tier takes only some of the checkpoints",
                hint='let the first one have no "every", or put "memory" before it',
            )
        return first

    def _claim_memory(self) -> MemoryTier | None:
        memory = MemoryTier(self.home.uuid, run=self.home.where, clock=self._clock)
        try:
            memory.claim()
        except StoreDenied as error:
            # Another user of this machine must not be able to keep a training from starting.
            log.warning("holdfast: no checkpoints are kept in memory: %s", error)
            return None
        return memory

    @property
    def writer_epoch(self) -> int:
        epochs = [store.writer_epoch for store in self._claimed]
        return max([self.home.writer_epoch, *epochs])

    def ladder(self) -> Ladder:
        """Everything the run has or had, nearest first, to restore from."""
        mine = {store.where: store for store in (self.home, *self._claimed)}
        tiers = [
            NamedTier(tier.name, mine.get(tier.store.where, tier.store), tier.partial)
            for tier in readable_tiers(self.home.where)
        ]
        self._ladder = Ladder(tiers, tell=say_fallback)
        return self._ladder

    def writer(self, together: Together | None) -> Writer:
        if together is None:
            return Alone(self.first, self.memory, self._outer[0][1] if self._outer else None)
        return Everybody(self.home, together.team, together.ballot)

    def start_draining(self, emit: Emit, resumed_from: str | None = None) -> None:
        """Copies outward begin, those first that an earlier process did not get around to."""
        if not self._outer or not self._leads:
            return
        ladder = self.ladder()
        targets = [
            FlushTier(
                tier.location,
                store,
                every=tier.flush_every,
                bytes_per_second=tier.bytes_per_second,
                retention=parse_keep(tier.keep) if tier.keep is not None else self._retention,
            )
            for tier, store in self._outer
        ]
        self._drain = Drain(ladder, targets, emit=emit, clock=self._clock)
        self._drain.catch_up()

    def committed(self, name: str, manifest: Manifest | None = None) -> None:
        if self._drain is not None:
            self._drain.committed(name, manifest)

    @property
    def needed(self) -> frozenset[str]:
        """Checkpoints that the first tier must keep until they have been copied outward."""
        return self._drain.needed if self._drain is not None else frozenset()

    def bytes_read(self, ladder: Ladder) -> dict[str, int]:
        return dict(ladder.bytes_by_tier)

    def nearest(self, ladder: Ladder) -> str:
        """The tier that most of what was restored came from."""
        read = ladder.bytes_by_tier
        # Of two that gave equally much, the nearer one's bytes were damaged.
        return max(reversed([tier.name for tier in ladder.tiers]), key=lambda name: read[name])

    def close(self, limit: float, *, durable: bool = False) -> str | None:
        """Bring the newest checkpoint outward within `limit` seconds. `durable`: the last state is committed,
        so nothing in memory is needed once that is done."""
        only_memory = None
        if self._drain is not None:
            behind = self._drain.stop(limit)
            if durable and self.first is self.memory and len(behind) == len(self._outer):
                only_memory = only_in_memory(behind)
            durable = durable and not behind
            for tier in behind:
                log.warning("holdfast: the newest checkpoint did not reach %s in time", tier)
        if self.memory is not None and durable:
            try:
                self.memory.discard()
            except StoreError as error:
                log.warning("holdfast: checkpoints stay in memory: %s", error)
        for store in self._claimed:
            store.release()
        return only_memory


def only_in_memory(behind: Sequence[str]) -> str:
    return (
        f"it is in memory alone, for the last copy to {', '.join(behind)} failed; start the run again on this"
        " node, or `holdfast rescue` its folder, before the node's memory is lost"
    )


def _refuse_what_one_process_cannot(tiers: Sequence[Tier]) -> None:
    for tier in tiers:
        if tier.protect not in (None, "single"):
            raise SetupError(
                f"{tier.protect!r} needs the memory or disks of several nodes, and this is one process",
                hint="leave it out here, or start the training on several nodes",
            )


def tiers_for(run: str, given: Sequence[str | Tier] | None, environ: Mapping[str, str]) -> tuple[Tier, ...]:
    """The tiers of this attempt; none means the run's own folder alone.

    Without `tiers=`, memory serves where somebody will restart on this node or clean up behind us: a
    supervisor. Gigabytes left in a node's memory by a job that nobody restarts would hurt the next one.
    """
    if given is not None:
        return parse_tiers(given)
    if environ.get(HEARTBEAT):
        return parse_tiers(["memory", "run"])
    # What earlier attempts left elsewhere must still be found.
    return parse_tiers(["run"]) if recall_tiers(run) != TierList() else ()
