"""A model of two tiers beside the real ones: whatever is saved, copied, pruned, killed, damaged and claimed,
in any order, what was acknowledged and is neither retired nor damaged is what a restore finds."""

import os
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.retain import Ledger, Retention, prune
from holdfast.errors import HoldfastError, NoValidCheckpoint, StoreError
from holdfast.stores.store import CheckpointStore
from holdfast.testing.crashing_io import CrashingIO, SimulatedCrash
from holdfast.testing.fake_clock import FakeClock
from holdfast.testing.memory_image import image_of
from holdfast.testing.memory_io import MemoryIO
from holdfast.testing.store_contract import newest_valid, save
from holdfast.tiers.copying import Copier
from holdfast.tiers.ladder import Ladder
from holdfast.tiers.named_tier import NamedTier

TORTURE = bool(os.environ.get("HOLDFAST_TORTURE"))
UUID = "00000000-0000-4000-8000-000000000007"
TIERS = ("home", "outer")
# The calls to the disk after which the process dies; None: it lives.
SURVIVES = st.one_of(st.none(), st.integers(0, 80))


class Spoken(CheckpointStore):
    """Says so before it retires: from that moment the victim may or may not be there."""

    def __init__(self, where: str, promised: set[str], **more: Any) -> None:
        super().__init__(where, threads=1, uuid=UUID, **more)
        self._promised = promised

    def retire(self, name: str) -> None:
        self._promised.discard(name)
        super().retire(name)


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disks = {tier: MemoryIO() for tier in TIERS}
        self.clock = FakeClock()
        self.step = 0
        # What each tier has acknowledged and was not asked to remove.
        self.promised: dict[str, set[str]] = {tier: set() for tier in TIERS}
        self.damaged: dict[str, set[str]] = {tier: set() for tier in TIERS}

    @initialize()
    def start(self) -> None:
        self.claim()

    def opened(self, tier: str, *, survives: int | None = None) -> Spoken:
        disk = self.disks[tier]
        io = disk if survives is None else CrashingIO(disk, survives)
        return Spoken(f"/{tier}", self.promised[tier], io=io, clock=self.clock)

    def or_die(self, work: Callable[[], object]) -> bool:
        """Whether the process lived. One that died leaves its files and nothing else."""
        try:
            work()
        except SimulatedCrash:
            for disk in self.disks.values():
                disk.process_died()
            self.claim()
            return False
        return True

    # ---- what happens

    @rule()
    def claim(self) -> None:
        """Another process takes the run up."""
        for disk in self.disks.values():
            disk.process_died()
        self.stores = {tier: self.opened(tier) for tier in TIERS}
        self.ledgers = {tier: Ledger() for tier in TIERS}
        self.epoch = self.stores["home"].claim()
        self.stores["outer"].claim(at_least=self.epoch)

    @rule()
    def saves(self) -> None:
        self.step += 1
        name = str(save(self.stores["home"], self.step, writer_epoch=self.epoch).name)
        self.promised["home"].add(name)
        self.ledgers["home"].committed.add(name)

    @rule(survives=st.integers(0, 60))
    def dies_while_it_saves(self, survives: int) -> None:
        self.step += 1
        store = self.opened("home", survives=survives)
        names: list[str] = []

        def work() -> None:
            epoch = store.claim(take_over=True)
            names.append(str(save(store, self.step, writer_epoch=epoch).name))

        if self.or_die(work):
            self.promised["home"].update(names)
            self.claim()

    @precondition(lambda self: self.promised["home"])
    @rule(survives=SURVIVES)
    def copies_outward(self, survives: int | None) -> None:
        name = max(self.promised["home"])
        outer = self.stores["outer"] if survives is None else self.opened("outer", survives=survives)

        def work() -> None:
            if survives is not None:
                outer.claim(at_least=self.epoch, take_over=True)
            copier = Copier(Ladder([NamedTier("home", self.stores["home"])]), outer)
            try:
                copier.copy(name)
            except StoreError:
                # A place that was left unfinished is removed first, and filled when asked again.
                copier.copy(name)
            copier.publish(name)

        if name in self.promised["outer"] or name in self.damaged["home"]:
            return
        if self.or_die(work):
            self.promised["outer"].add(name)
            if survives is not None:
                self.claim()

    @rule(tier=st.sampled_from(TIERS), survives=SURVIVES, keep=st.integers(2, 3))
    def prunes(self, tier: str, survives: int | None, keep: int) -> None:
        store = self.stores[tier] if survives is None else self.opened(tier, survives=survives)

        def work() -> None:
            if survives is not None:
                store.claim(at_least=self.epoch, take_over=True)
            prune(store, Retention(latest=keep), self.ledgers[tier])

        whole = sorted(self.promised[tier] - self.damaged[tier], reverse=True)
        lived = self.or_die(work)
        # The newest two that are whole are never taken, whatever `keep` says.
        assert set(whole[:2]) <= self.promised[tier]
        if lived and survives is not None:
            self.claim()

    @precondition(lambda self: any(self.promised.values()))
    @rule(data=st.data())
    def rots(self, data: st.DataObject) -> None:
        """One byte of one data file changes."""
        tier = data.draw(st.sampled_from([one for one in TIERS if self.promised[one]]))
        name = data.draw(st.sampled_from(sorted(self.promised[tier])))
        disk = self.disks[tier]
        root = disk.open_root("", create=False)
        place = disk.open_directory(disk.open_directory(root, "ckpt"), name)
        file = disk.open_read(place, image_of(1).name)
        byte = bytearray(1)
        at = data.draw(st.integers(0, disk.size(file) - 1))
        disk.read_at(file, memoryview(byte), at)
        disk.tree.write(disk.inode_of(file), at, bytes([byte[0] ^ 0x10]))
        disk.process_died()
        self.damaged[tier].add(name)
        self.claim()

    @rule(seconds=st.sampled_from([-1e9, -3600.0, 3600.0, 1e9]))
    def clock_jumps(self, seconds: float) -> None:
        self.clock.skew_wall(seconds)

    # ---- what must hold

    @invariant()
    def a_restore_finds_the_newest_that_is_promised_and_whole(self) -> None:
        if not hasattr(self, "stores"):
            return
        for tier in TIERS:
            self.check(self.opened(tier), self.promised[tier] - self.damaged[tier])
        both = Ladder([NamedTier(tier, self.opened(tier)) for tier in TIERS])
        whole = set.union(*(self.promised[tier] - self.damaged[tier] for tier in TIERS))
        self.check(both, whole)

    def check(self, store: object, whole: set[str]) -> None:
        try:
            found = newest_valid(store)  # type: ignore[arg-type]
        except NoValidCheckpoint:
            assert not whole, f"{sorted(whole)} were promised, and nothing loads"
            return
        except HoldfastError as error:
            raise AssertionError(f"a restore fails: {error}") from error
        if found is None:
            assert not whole
            return
        newest = str(found.found.name)
        assert not whole or newest >= max(whole), f"{newest} is restored, {max(whole)} was promised"
        image = image_of(found.found.step)
        assert found.files[image.name] == image.view(0, image.size)

    @invariant()
    def nothing_promised_has_left_the_listing(self) -> None:
        if hasattr(self, "stores"):
            for tier in TIERS:
                listed = {str(one.name) for one in committed(self.opened(tier))}
                assert self.promised[tier] <= listed


TestModel = Model.TestCase
TestModel.settings = settings(
    max_examples=3000 if TORTURE else 15, stateful_step_count=25, deadline=None, derandomize=not TORTURE
)
