"""Runs, nodes and buckets that an earlier commit left, in every state, are read, continued and cleaned up."""

import tarfile
from pathlib import Path

import pytest

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.retain import Ledger, Retention, prune
from holdfast.checkpoints.verify import verify
from holdfast.stores.base import Store
from holdfast.stores.locations import node_store
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_image import image_of
from holdfast.testing.memory_io import MemoryIO
from holdfast.testing.store_contract import draft, newest_valid, save

HERE = Path(__file__).parent
UUID = "12345678-1234-1234-1234-123456789abc"
PARTNER = "r00001-000.safetensors"


def unpack(name: str, into: Path) -> Path:
    with tarfile.open(HERE / f"{name}.tar.xz") as tar:
        tar.extractall(into / name, filter="data")
    return into / name


def steps(store: Store) -> list[int]:
    found = committed(store)
    assert all(verify(store, one).is_whole for one in found)
    return [one.step for one in found]


def places(run: Path) -> list[str]:
    return sorted(place.name for place in (run / "ckpt").iterdir())


def manifest_of(step: int) -> bytes:
    """The manifest that the copy which was under way is to get."""
    store = CheckpointStore("/run", io=MemoryIO(), uuid=UUID)
    store.claim()
    return store.manifest(str(save(store, step, nonce=f"{step:08x}").name))


def test_a_run_is_read_continued_and_cleaned_up(tmp_path: Path) -> None:
    run = unpack("run", tmp_path)
    store = CheckpointStore(run, grace_seconds=0.0)
    assert steps(store) == [3, 2]
    assert store.uuid == UUID
    with store:
        assert store.claim() == 2
        # What was begun and what was retired is gone; the copy that can be continued is not.
        assert [place.partition("-")[2] for place in places(run)] == [
            "s000000000002-00000002", "s000000000003-00000003", "s000000000005-00000005.incoming",
        ]  # fmt: skip
        ledger = Ledger()
        for step in (6, 7):
            ledger.committed.add(str(save(store, step, writer_epoch=2).name))
        assert steps(store) == [7, 6, 3, 2]
        assert prune(store, Retention(latest=2), ledger).refused is None
        assert steps(store) == [7, 6]
    loaded = newest_valid(store)
    assert loaded is not None
    assert loaded.files[image_of(7).name] == image_of(7).view(0, image_of(7).size)


def test_a_copy_that_was_under_way_is_finished(tmp_path: Path) -> None:
    run = unpack("run", tmp_path)
    with CheckpointStore(run, grace_seconds=0.0) as store:
        store.claim()
        name = str(draft(5, nonce="00000005").name)
        assert store.leftovers(before=name + "x") == [name]
        store.publish(name, manifest_of(5))
        assert steps(store) == [5, 3, 2]
        assert store.leftovers(before=name + "x") == []


def test_a_node_is_read_continued_and_retired(tmp_path: Path) -> None:
    run = unpack("node", tmp_path)
    store = node_store(run, uuid=UUID)
    assert steps(store) == [2, 1]
    two, three = (str(draft(step, nonce=f"{step:08x}").name) for step in (2, 3))
    assert set(store.held(two)) == {image_of(2).name, PARTNER}
    assert store.leftovers() == [three]
    store.publish(three, manifest_of(3))
    assert steps(store) == [3, 2, 1]
    store.retire(two)
    assert steps(store) == [3, 1]
    assert len(places(run)) == 2


def test_a_bucket_is_read_continued_and_cleaned_up(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    from holdfast.stores.locations import bucket_store
    from holdfast.stores.obstore_bucket import ObstoreBucket

    bucket = ObstoreBucket("memory:///")
    run = unpack("bucket", tmp_path)
    for file in sorted(run.rglob("*")):
        if file.is_file():
            bucket.create(str(file.relative_to(run)), file.read_bytes())
    store = bucket_store(bucket, grace_seconds=0.0)
    assert steps(store) == [2]
    assert store.uuid == UUID
    with store:
        assert store.claim(take_over=True) == 2
        for name in store.leftovers():
            store.abandon(name)
        save(store, 4, writer_epoch=2)
        assert steps(store) == [4, 2]
        assert {key.split("/")[1].split("-")[1] for key in bucket.keys("ckpt/")} == {
            "s000000000002", "s000000000004",
        }  # fmt: skip
