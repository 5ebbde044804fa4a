"""The power goes, or a call fails, while something damaged is replaced: never is there less than before."""

import contextlib
import errno

import pytest

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.verify import verify
from holdfast.errors import HoldfastError
from holdfast.format.names import MANIFEST, SECOND
from holdfast.stores.io import StoreIO
from holdfast.stores.locations import node_store
from holdfast.stores.place import CKPT
from holdfast.stores.store import CheckpointStore
from holdfast.testing.crash_states import crash_states
from holdfast.testing.failing_io import FailingIO
from holdfast.testing.memory_image import image_of
from holdfast.testing.memory_io import MemoryIO
from holdfast.testing.recording_io import RecordingIO
from holdfast.testing.store_contract import save

DAMAGES = {
    "the manifest": [MANIFEST],
    "the second": [SECOND],
    "a file": [image_of(1).name],
    "all": [MANIFEST, image_of(1).name],
}
UUID = "12345678-1234-1234-1234-123456789abc"
KINDS = ["a run's folder", "a node's folder"]


def store_of(kind: str, io: StoreIO) -> CheckpointStore:
    if kind == KINDS[0]:
        return CheckpointStore("/run", io=io, threads=1, uuid=UUID)
    return node_store("/run", io=io, threads=1, uuid=UUID)


def damaged(kind: str, damage: list[str], io: StoreIO) -> tuple[CheckpointStore, str, bytes]:
    """A store with one checkpoint, of which these entries hold other bytes."""
    store = store_of(kind, io)
    name = str(save(store, 1, writer_epoch=store.claim() or 1).name)
    right = store.manifest(name)
    place = io.open_directory(io.open_directory(io.open_root("/run", create=False), CKPT), name)
    for entry in damage:
        file = io.create(place, "junk")
        io.write_at(file, memoryview(b"other bytes"), 0)
        io.fsync(file)
        io.close(file)
        io.replace(place, "junk", entry)
    io.fsync_directory(place)
    return store, name, right


def repair(store: CheckpointStore, name: str, right: bytes) -> None:
    store.publish(name, right)
    [found] = committed(store)
    assert found.manifest is not None
    store.write(name, image_of(1), expect=found.manifest.files[0], replace=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_no_crash_during_a_repair_leaves_less_than_there_was(kind: str, damage: str) -> None:
    io = RecordingIO(MemoryIO())
    store, name, right = damaged(kind, DAMAGES[damage], io)
    io.recording.mark("damaged")
    repair(store, name, right)
    io.recording.mark("repaired")
    seen = 0
    for state in crash_states(io.recording):
        said = {mark.label for mark in state.promises}
        if "damaged" in said:
            left = store_of(kind, MemoryIO(state.tree))
            assert left.names() == [name]
            assert left.manifest(name) == right
            assert image_of(1).name in left.held(name)
            seen += 1
        if "repaired" in said:
            assert left.damaged_records(name, right) == []
            assert verify(left, committed(left)[0]).is_whole
    assert seen > 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [False, True], ids=["fails", "reply lost"])
def test_a_call_that_fails_during_a_repair_leaves_what_can_be_repaired(kind: str, after: bool) -> None:
    nth = 0
    while True:
        nth += 1
        memory = MemoryIO()
        failing = FailingIO(memory, nth, errno.EIO, after=after)
        failing.armed = False
        store, name, right = damaged(kind, DAMAGES["all"], failing)
        failing.armed = True
        with contextlib.suppress(HoldfastError):
            repair(store, name, right)
        failing.armed = False
        assert store.names() == [name]
        assert store.manifest(name) == right
        repair(store, name, right)
        assert store.damaged_records(name, right) == []
        assert verify(store, committed(store)[0]).is_whole
        if not failing.fired:
            break
    assert nth > 10
