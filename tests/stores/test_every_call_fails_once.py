"""The n-th I/O call fails, for every n, with every error worth having, once and for good.

Whatever fails: never a false success, never a lost older checkpoint, never an error that is not ours,
never a descriptor left open, and the next attempt on a healthy disk works.
"""

import contextlib
import copy
import errno
import functools
import os
from collections.abc import Callable
from typing import Literal

import pytest

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.retain import Ledger, Retention, prune
from holdfast.checkpoints.verify import verify
from holdfast.errors import HoldfastError, NoValidCheckpoint, StoreFull
from holdfast.stores.patience import Patience
from holdfast.stores.store import CheckpointStore
from holdfast.testing.failing_io import FailingIO
from holdfast.testing.memory_image import image_of
from holdfast.testing.memory_io import ROOT, MemoryIO, Tree
from holdfast.testing.store_contract import newest_valid, save

Error = int | Literal["short"]
NUMBERS = ("EIO", "ENOSPC", "EDQUOT", "EINTR", "EAGAIN", "ESTALE", "ENOENT", "EROFS")
ERRORS: dict[str, Error] = {**{name: getattr(errno, name) for name in NUMBERS}, "short write": "short"}
MODES = {"once": (False, False), "for good": (True, False), "reply lost": (False, True)}
# Which errno it is matters only where the code asks for one; a short run tries those, a long one all.
TORTURE = bool(os.environ.get("HOLDFAST_TORTURE"))
TELLING = {"once": ("EIO", "ENOSPC", "EINTR", "ENOENT", "short write")}
CASES = {
    f"{mode}, {name}": (ERRORS[name], *MODES[mode])
    for mode in MODES
    for name in (ERRORS if TORTURE else TELLING.get(mode, ("EIO", "ENOENT")))
}
every_failure = pytest.mark.parametrize(("error", "persistent", "after"), CASES.values(), ids=CASES.keys())


@functools.cache
def tree_with(steps: range) -> Tree:
    memory = MemoryIO()
    store = CheckpointStore("/run", io=memory)
    epoch = store.claim()
    for step in steps:
        save(store, step, writer_epoch=epoch)
    store.release()
    return memory.tree


def store_with(steps: range) -> MemoryIO:
    return MemoryIO(copy.deepcopy(tree_with(steps)))


def each_failure(
    steps: range, error: Error, persistent: bool, after: bool, act: Callable[[MemoryIO, FailingIO], None]
) -> int:
    """Let `act` meet a failure at its first call, its second, and so on until it passes untouched."""
    nth = 0
    while True:
        nth += 1
        memory = store_with(steps)
        failing = FailingIO(memory, nth, error, persistent=persistent, after=after)
        act(memory, failing)
        assert nth < 1000, "the action never ends"
        if not failing.fired:
            return nth


def steps_that_load(memory: MemoryIO) -> set[int]:
    store = CheckpointStore("/run", io=memory)
    return {one.step for one in committed(store) if verify(store, one).is_whole}


def places(memory: MemoryIO) -> list[str]:
    """Every checkpoint directory there is, committed or not."""
    return list(memory.tree.directories[memory.tree.directories[ROOT]["ckpt"]])


def assert_newest_loads(memory: MemoryIO, step: int) -> None:
    loaded = newest_valid(CheckpointStore("/run", io=memory))
    assert loaded is not None
    assert loaded.found.step == step
    assert loaded.files[image_of(step).name] == image_of(step).view(0, image_of(step).size)


@every_failure
def test_a_failing_save_is_reported_and_harms_nothing(error: Error, persistent: bool, after: bool) -> None:
    def act(memory: MemoryIO, failing: FailingIO) -> None:
        failing.armed = False
        store = CheckpointStore("/run", io=failing)
        epoch = store.claim()
        failing.armed = True
        try:
            save(store, 3, writer_epoch=epoch)
        except HoldfastError:
            saved = False
        else:
            saved = True
        assert steps_that_load(memory) >= {1, 2} | ({3} if saved else set())
        failing.armed = False
        save(store, 4, writer_epoch=epoch)
        assert_newest_loads(memory, 4)
        # Whatever the failed save could not take back is recognised as litter.
        for litter in store.leftovers():
            store.abandon(litter)
        assert len(store.names()) == len(places(memory))
        store.release()
        assert memory.open_handles == 0

    assert each_failure(range(1, 3), error, persistent, after, act) > 20


@every_failure
def test_a_failing_prune_never_costs_what_must_stay(error: Error, persistent: bool, after: bool) -> None:
    def act(memory: MemoryIO, failing: FailingIO) -> None:
        failing.armed = False
        store = CheckpointStore("/run", io=failing)
        epoch = store.claim()
        ledger = Ledger(committed={str(save(store, 9, writer_epoch=epoch).name)})
        failing.armed = True
        with contextlib.suppress(HoldfastError):
            prune(store, Retention(latest=2), ledger)
        failing.armed = False
        assert steps_that_load(memory) >= {4, 9}
        for one in committed(CheckpointStore("/run", io=memory)):
            assert verify(CheckpointStore("/run", io=memory), one).is_whole, "a manifest over missing data"
        again = prune(store, Retention(latest=2), ledger)
        assert again.refused is None
        assert steps_that_load(memory) == {4, 9}
        # What the failed attempt had half removed is gone by now, too.
        assert store.leftovers() == []
        store.release()
        assert memory.open_handles == 0

    assert each_failure(range(2, 5), error, persistent, after, act) > 40


@every_failure
def test_a_failing_restore_never_invents_or_forgets(error: Error, persistent: bool, after: bool) -> None:
    def act(memory: MemoryIO, failing: FailingIO) -> None:
        rejected: list[str] = []
        try:
            loaded = newest_valid(
                CheckpointStore("/run", io=failing),
                reject=lambda found, why: rejected.append(why),
                patience=Patience(attempts=4, first_pause=0.0),
            )
        except HoldfastError as refused:
            assert persistent or error == errno.ENOENT, "a failure that goes away stops nothing"
            assert rejected or not isinstance(refused, NoValidCheckpoint)  # noqa: PT017  both are right
        else:
            # ENOENT on the root or on ckpt/ is what an empty store looks like; nothing else may be.
            if loaded is None:
                assert error == errno.ENOENT
            else:
                # Only what is not there is passed over: any other failure says nothing about the bytes.
                assert loaded.found.step == 2 or (rejected and error == errno.ENOENT)
                image = image_of(loaded.found.step)
                assert loaded.files[image.name] == image.view(0, image.size)
        assert memory.open_handles == 0
        assert_newest_loads(memory, 2)

    assert each_failure(range(1, 3), error, persistent, after, act) > 10


@every_failure
def test_a_failing_claim_leaves_the_seat_free(error: Error, persistent: bool, after: bool) -> None:
    def act(memory: MemoryIO, failing: FailingIO) -> None:
        store = CheckpointStore("/run", io=failing)
        try:
            store.claim()
        except HoldfastError:
            # The same object may try again, and so may another process.
            failing.armed = False
            assert store.claim() > 1
        failing.armed = False
        store.release()
        heir = CheckpointStore("/run", io=memory)
        assert save(heir, 5, writer_epoch=heir.claim()).manifest.writer_epoch > 1
        heir.release()
        assert_newest_loads(memory, 5)

    assert each_failure(range(1, 3), error, persistent, after, act) > 10


def test_a_failed_fsync_is_never_asked_again() -> None:
    class FsyncFailsOnce(MemoryIO):
        """The kernel reports the loss once, marks the pages clean, and says yes ever after."""

        failed: int | None = None
        asked_again = False
        is_healthy = False

        def fsync(self, file: int) -> None:
            inode = self.inode_of(file)
            if self.failed is None and not self.is_healthy:
                self.failed = inode
                self.tree.files[inode][:] = bytes(len(self.tree.files[inode]))
                raise OSError(errno.EIO, "lost")
            self.asked_again |= inode == self.failed

    memory = store_with(range(1, 3))
    gate = FsyncFailsOnce(memory.tree)
    store = CheckpointStore("/run", io=gate)
    gate.is_healthy = True
    epoch = store.claim()
    gate.is_healthy = False
    with pytest.raises(HoldfastError):
        save(store, 3, writer_epoch=epoch)
    assert gate.failed is not None
    assert not gate.asked_again
    assert steps_that_load(memory) == {1, 2}


def test_too_little_space_is_noticed_before_anything_is_written() -> None:
    memory = MemoryIO(free_bytes=17 << 20)
    store = CheckpointStore("/run", io=memory)
    epoch = store.claim()
    before = memory.tree.fingerprint()
    with pytest.raises(StoreFull, match=r"17\.8 MB are free"):
        save(store, 1, writer_epoch=epoch)
    assert memory.tree.fingerprint() == before
