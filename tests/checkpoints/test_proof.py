"""Only what is proven damaged, or not there, makes a run go on from an older checkpoint."""

import copy
import errno
import os

import pytest

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.retain import Ledger, Retention, prune
from holdfast.errors import NewerFormat, StoreUnavailable
from holdfast.format.sealed import seal, unseal
from holdfast.stores.patience import Patience
from holdfast.stores.store import CheckpointStore
from holdfast.testing.forwarding_io import ForwardingIO
from holdfast.testing.memory_image import image_of
from holdfast.testing.memory_io import MemoryIO
from holdfast.testing.store_contract import newest_valid, save

QUICK = Patience(attempts=5, first_pause=0.0)
TRANSIENT = ("EIO", "ESTALE", "EMFILE", "ENFILE", "ETIMEDOUT", "EACCES", "EINTR")


class Stumbling(ForwardingIO):
    """Reading a file of one name fails, in opening it or in reading it, `times` times."""

    def __init__(self, inner: MemoryIO, file: str, verb: str, number: int, times: int) -> None:
        super().__init__(inner)
        self._file, self._verb, self._number, self.left = file, verb, number, times
        self._watched: set[int] = set()

    def _stumble(self) -> None:
        if self.left > 0:
            self.left -= 1
            raise OSError(self._number, os.strerror(self._number))

    def open_read(self, parent: int, name: str, *, direct: bool = False) -> int:
        if name == self._file and self._verb == "open":
            self._stumble()
        handle = super().open_read(parent, name, direct=direct)
        if name == self._file:
            self._watched.add(handle)
        return handle

    def read_at(self, file: int, buffer: memoryview, offset: int) -> int:
        if file in self._watched and self._verb == "read":
            self._stumble()
        return super().read_at(file, buffer, offset)


def two_saves() -> MemoryIO:
    memory = MemoryIO()
    with CheckpointStore("/run", io=memory) as store:
        epoch = store.claim()
        save(store, 1, writer_epoch=epoch)
        save(store, 2, writer_epoch=epoch)
    return memory


@pytest.mark.parametrize("number", TRANSIENT)
@pytest.mark.parametrize("verb", ["open", "read"])
@pytest.mark.parametrize("file", ["MANIFEST", image_of(2).name])
def test_one_read_error_that_goes_away_is_not_damage(file: str, verb: str, number: str) -> None:
    io = Stumbling(two_saves(), file, verb, getattr(errno, number), times=3)
    passed_over: list[str] = []
    loaded = newest_valid(
        CheckpointStore("/run", io=io), reject=lambda found, why: passed_over.append(why), patience=QUICK
    )
    assert loaded is not None
    assert (loaded.found.step, passed_over) == (2, [])


@pytest.mark.parametrize("verb", ["open", "read"])
def test_a_read_error_that_stays_stops_the_restore_and_nothing_older_is_taken(verb: str) -> None:
    memory = two_saves()
    io = Stumbling(memory, image_of(2).name, verb, errno.EIO, times=10**6)
    before = memory.tree.fingerprint()
    with pytest.raises(StoreUnavailable, match=r"cannot tell whether checkpoint .* is whole"):
        newest_valid(CheckpointStore("/run", io=io), patience=QUICK)
    assert memory.tree.fingerprint() == before


def test_the_second_manifest_that_cannot_be_read_for_now_is_no_proof() -> None:
    memory = two_saves()
    store = CheckpointStore("/run", io=memory)
    ckpt = memory.tree.directories[memory.tree.directories[0]["ckpt"]]
    place = memory.tree.directories[ckpt[max(store.names())]]
    memory.tree.files[place["MANIFEST"]][5] ^= 1
    io = Stumbling(memory, "MANIFEST.2", "open", errno.ESTALE, times=2)
    loaded = newest_valid(CheckpointStore("/run", io=io), patience=QUICK)
    assert loaded is not None
    assert loaded.found.step == 2


def test_what_was_passed_over_stays_until_the_run_has_got_as_far() -> None:
    memory = MemoryIO()
    with CheckpointStore("/run", io=memory) as store:
        epoch = store.claim()
        for step in (10, 20, 30):
            save(store, step, writer_epoch=epoch)
    with CheckpointStore("/run", io=memory) as store:
        # Went on from 20, for whatever reason: a node that was away, or somebody who wanted to.
        epoch = store.claim()
        ledger = Ledger()
        for step in (24, 25, 26):
            ledger.committed.add(str(save(store, step, writer_epoch=epoch).name))
            prune(store, Retention(latest=2), ledger)
        assert sorted(found.step for found in committed(store)) == [25, 26, 30]
        save(store, 31, writer_epoch=epoch)
        prune(store, Retention(latest=2), ledger)
        assert sorted(found.step for found in committed(store)) == [26, 31]


def newer_format(memory: MemoryIO) -> None:
    """As a later holdfast would write it: sealed, and with another format number."""
    store = CheckpointStore("/run", io=memory)
    name = max(store.names())
    ckpt = memory.tree.directories[memory.tree.directories[0]["ckpt"]]
    record = copy.deepcopy(unseal(store.manifest(name)))
    for file in ("MANIFEST", "MANIFEST.2"):
        inode = memory.tree.directories[ckpt[name]][file]
        memory.tree.files[inode][:] = seal({**record, "format": 99, "something": "new"})


def test_a_checkpoint_of_a_newer_format_is_refused_and_never_stepped_back_from() -> None:
    memory = two_saves()
    newer_format(memory)
    store = CheckpointStore("/run", io=memory)
    with pytest.raises(NewerFormat, match=r"a newer holdfast wrote this checkpoint.*install"):
        newest_valid(store, patience=QUICK)


def test_a_checkpoint_of_a_newer_format_is_never_pruned() -> None:
    memory = two_saves()
    newer_format(memory)
    with CheckpointStore("/run", io=memory) as store:
        epoch = store.claim()
        for step in (3, 4, 5):
            save(store, step, writer_epoch=epoch)
        prune(store, Retention(latest=2), Ledger())
        assert 2 in [found.step for found in committed(store)]
