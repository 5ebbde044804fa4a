"""Save, restore, verify and prune in a bucket, through the same functions as anywhere else."""

import logging
from pathlib import Path

import numpy as np
import pytest
from quick_store import bucket_at, store_at

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.read import read_files
from holdfast.checkpoints.retain import Ledger, Retention, prune
from holdfast.checkpoints.verify import is_complete, verify
from holdfast.checkpoints.write import write_checkpoint
from holdfast.errors import CorruptCheckpoint, InternalError, StoreNotFound
from holdfast.format.checksum import CHUNK_BYTES, digest
from holdfast.stores.object_writes import part_bytes
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_image import MemoryImage, image_of
from holdfast.testing.object_servers import ObjectServer
from holdfast.testing.store_contract import draft, newest_valid, save


def large_image(size: int = 2 * CHUNK_BYTES + 12345, *, concurrent: bool = True) -> MemoryImage:
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    return MemoryImage("big.bin", content, concurrent=concurrent)


class ReusedMemory(MemoryImage):
    """Hands out the same memory for every piece, as an image streamed from live tensors does."""

    concurrent = False

    def __init__(self, image: MemoryImage) -> None:
        super().__init__(image.name, b"\0" * CHUNK_BYTES)
        self._image = image
        self.size = image.size
        self.concurrent = False

    def view(self, start: int, stop: int) -> memoryview:
        self._memory[: stop - start] = self._image.view(start, stop)
        return self._memory[: stop - start]


def test_a_large_image_goes_up_in_parts_and_comes_back_in_ranges(weed: ObjectServer, prefix: str) -> None:
    image = large_image()
    with store_at(weed, prefix) as store:
        done = write_checkpoint(store, draft(1, writer_epoch=store.claim()), [image])
        loaded = newest_valid(store)
    assert loaded is not None
    assert loaded.files["big.bin"] == image.view(0, image.size)
    [record] = done.manifest.files
    spans = [(i * CHUNK_BYTES, min((i + 1) * CHUNK_BYTES, image.size)) for i in range(3)]
    assert record.digests == tuple(digest(image.view(a, b)) for a, b in spans)


def test_a_source_that_reuses_its_memory_is_not_garbled(weed: ObjectServer, prefix: str) -> None:
    image = large_image()
    with store_at(weed, prefix) as store:
        write_checkpoint(store, draft(1, writer_epoch=store.claim()), [ReusedMemory(image)])
        loaded = newest_valid(store)
    assert loaded is not None
    assert loaded.files["big.bin"] == image.view(0, image.size)


def test_pruning_keeps_what_it_must_and_leaves_no_object_behind(weed: ObjectServer, prefix: str) -> None:
    with store_at(weed, prefix) as store:
        epoch, ledger = store.claim(), Ledger()
        for step in range(1, 6):
            ledger.committed.add(str(save(store, step, writer_epoch=epoch).name))
        pruned = prune(store, Retention(latest=2), ledger)
        assert (len(pruned.retired), pruned.refused, pruned.failed) == (3, None, ())
        assert [found.step for found in committed(store)] == [5, 4]
        kept = {str(found.name) for found in committed(store)}
        keys = bucket_at(weed, prefix).keys("ckpt/")
    assert {key.split("/")[1] for key in keys} == kept
    assert {key.split("/")[2] for key in keys} == {"MANIFEST", "MANIFEST.2", image_of(1).name}


def test_verify_finds_a_changed_byte_and_restore_falls_back(weed: ObjectServer, prefix: str) -> None:
    import obstore

    with store_at(weed, prefix) as store:
        epoch = store.claim()
        for step in (1, 2):
            save(store, step, writer_epoch=epoch)
        newest = committed(store)[0]
        bucket = bucket_at(weed, prefix)
        content = bytearray(image_of(2).view(0, image_of(2).size))
        content[-1] ^= 1
        obstore.put(bucket._store, f"ckpt/{newest.name}/{image_of(2).name}", bytes(content))
        assert not verify(store, newest).is_whole
        rejected = []
        loaded = newest_valid(store, reject=lambda found, why: rejected.append((found.step, why)))
    assert loaded is not None
    assert loaded.manifest.step == 1
    assert [step for step, _ in rejected] == [2]
    assert "does not match its digest" in rejected[0][1]


def test_an_object_replaced_under_a_reader_is_noticed(weed: ObjectServer, prefix: str) -> None:
    import obstore

    with store_at(weed, prefix) as store:
        name = str(save(store, 1, writer_epoch=store.claim()).name)
        file = store.open(name, image_of(1).name)
        key = f"ckpt/{name}/{image_of(1).name}"
        obstore.put(bucket_at(weed, prefix)._store, key, b"x" * file.size)
        with pytest.raises(StoreNotFound, match="no longer the one"):
            file.read_into(0, memoryview(bytearray(file.size)))


def test_a_damaged_manifest_is_replaced_by_its_second_copy(weed: ObjectServer, prefix: str) -> None:
    import obstore

    with store_at(weed, prefix) as store:
        name = str(save(store, 1, writer_epoch=store.claim()).name)
        raw = bucket_at(weed, prefix)._store
        obstore.put(raw, f"ckpt/{name}/MANIFEST", b"torn")
        assert read_files(store, committed(store)[0])
        obstore.put(raw, f"ckpt/{name}/MANIFEST.2", b"torn too")
        with pytest.raises(CorruptCheckpoint):
            store.manifest(name)


def test_a_copy_of_the_objects_is_a_directory_store(weed: ObjectServer, prefix: str, tmp_path: Path) -> None:
    bucket = bucket_at(weed, prefix)
    with store_at(weed, prefix) as store:
        save(store, 3, writer_epoch=store.claim(), progress={"complete": True})
        uuid = store.uuid
        assert is_complete(store)
    for key in bucket.keys("ckpt/") + bucket.keys("writers/") + ["STORE.json"]:
        state = bucket.look(key)
        assert state is not None
        data = bytearray(state.size)
        bucket.read(key, 0, memoryview(data), None)
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(data)
    with CheckpointStore(tmp_path) as copy:
        assert copy.uuid == uuid
        assert copy.claim() == 2
        loaded = newest_valid(copy)
        assert loaded is not None
        assert loaded.files[image_of(3).name] == image_of(3).view(0, image_of(3).size)


def test_foreign_objects_are_neither_seen_nor_deleted(weed: ObjectServer, prefix: str) -> None:
    bucket = bucket_at(weed, prefix)
    with store_at(weed, prefix) as store:
        name = str(save(store, 1, writer_epoch=store.claim()).name)
        save(store, 2)
        foreign = [f"ckpt/{name}/Notes.TXT", f"ckpt/{name}/deep/er.bin", "ckpt/not-a-name/MANIFEST"]
        for key in foreign:
            bucket.create(key, b"mine")
        store.retire(name)
        assert name not in store.names()
        assert len(store.names()) == 1
    assert set(foreign) <= set(bucket.keys("ckpt/"))
    assert f"ckpt/{name}/MANIFEST.dead" in bucket.keys("ckpt/")


def test_a_server_that_ignores_preconditions_is_said_to(
    careless: ObjectServer, weed: ObjectServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    with store_at(weed, prefix) as strict, store_at(careless, prefix) as blind:
        with caplog.at_level(logging.WARNING, "holdfast"):
            strict.claim()
            assert not caplog.records
            blind.claim()
        assert "ignores preconditions" in caplog.text
    assert bucket_at(careless, prefix).keys("probes/") == []


def test_nobody_writes_without_a_claim(weed: ObjectServer, prefix: str) -> None:
    with store_at(weed, prefix) as store:
        store.claim()
        with pytest.raises(InternalError):
            store.begin("../elsewhere", 1)


def test_parts_stay_below_the_servers_limit_on_their_number() -> None:
    assert part_bytes(1) == part_bytes(9_000 * CHUNK_BYTES) == CHUNK_BYTES
    assert part_bytes(9_000 * CHUNK_BYTES + 1) == 2 * CHUNK_BYTES
    for size in (1, 1 << 40, 1 << 45):
        assert -(-size // part_bytes(size)) <= 9_000
        assert part_bytes(size) % CHUNK_BYTES == 0
