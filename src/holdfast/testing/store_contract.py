"""What every store must do, as tests to inherit: a new store passes these before anything is built on it.

class TestMyStore(StoreContract):
    def make_store(self, tmp_path): ...
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.read import Loaded, newest_loadable, read_files
from holdfast.checkpoints.write import CheckpointDraft, Committed, write_checkpoint
from holdfast.errors import HoldfastError, StoreError, StoreNotFound
from holdfast.stores.base import Store
from holdfast.stores.leftovers import sweep
from holdfast.testing.memory_image import MemoryImage, image_of


def draft(step: int, *, writer_epoch: int = 1, **more: Any) -> CheckpointDraft:
    """A draft with everything uninteresting filled in."""
    said = {"created": "2024-01-01T00:00:00+00:00", "reason": "test", **more}
    return CheckpointDraft(writer_epoch=writer_epoch, step=step, **said)


def save(store: Store, step: int, *, writer_epoch: int = 1, **more: Any) -> Committed:
    """A small checkpoint whose bytes depend on the step."""
    return write_checkpoint(store, draft(step, writer_epoch=writer_epoch, **more), [image_of(step)])


def newest_valid(store: Store, **more: Any) -> Loaded | None:
    """The newest checkpoint that is whole, all of its files; `more` goes to `newest_loadable`."""
    return newest_loadable(store, lambda found: Loaded(found, read_files(store, found)), **more)


class StoreContract:
    """Inherit and give `make_store`: an empty store that this process may write."""

    # Object stores cannot keep what was deleted; there a reader must be told so, and never get other bytes.
    open_files_outlive_retirement = True

    def make_store(self, tmp_path: Path) -> Store:
        raise NotImplementedError

    def test_an_empty_store_has_no_checkpoint(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        assert store.names() == []
        assert newest_valid(store) is None

    def test_what_was_saved_is_read_back_byte_for_byte(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        done = save(store, 7)
        [found] = committed(store)
        files = read_files(store, found)
        assert found.manifest == done.manifest
        assert {name: bytes(view) for name, view in files.items()} == {
            image_of(7).name: bytes(image_of(7).view(0, image_of(7).size))
        }

    def test_sizes_around_pages_and_chunks_survive(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        chunk = 16 << 20
        for step, size in enumerate((0, 1, 4095, 4096, 4097, chunk - 1, chunk, chunk + 1, 2 * chunk + 5000)):
            pattern = bytes(range(251)) * (size // 251 + 1)
            for concurrent in (False, True):
                source = MemoryImage("data.bin", pattern[:size], concurrent=concurrent)
                step_here = 2 * step + concurrent
                write_checkpoint(store, draft(step_here), [source])
                loaded = newest_valid(store)
                assert loaded is not None
                assert loaded.manifest.step == step_here
                assert loaded.files["data.bin"] == pattern[:size]

    def test_an_unpublished_place_is_invisible(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        name = str(draft(3).name)
        store.begin(name, 1 << 20)
        store.write(name, image_of(3))
        assert store.names() == []
        store.abandon(name)
        assert store.names() == []

    def test_what_is_being_written_is_not_swept(self, tmp_path: Path) -> None:
        """Housekeeping has a thread of its own: it sweeps while the next checkpoint is being written."""
        store = self.make_store(tmp_path)
        save(store, 1)
        sources = [_Sweeping(store, image_of(2, name=f"r00000-{i:03d}.safetensors")) for i in range(3)]
        name = str(write_checkpoint(store, draft(2), sources).name)
        assert [found for source in sources for found in source.swept] == []
        assert name in store.names()
        [found] = [one for one in committed(store) if str(one.name) == name]
        assert len(read_files(store, found)) == 3
        assert sweep(store) == []

    def test_a_name_is_never_used_twice(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        first = draft(5, nonce="00000001")
        write_checkpoint(store, first, [image_of(5)])
        _must_raise(StoreError, lambda: write_checkpoint(store, first, [image_of(6)]))
        loaded = newest_valid(store)
        assert loaded is not None
        assert loaded.files[image_of(5).name] == image_of(5).view(0, image_of(5).size)

    def test_a_published_place_cannot_be_abandoned(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        name = str(save(store, 1).name)
        _must_raise(HoldfastError, lambda: store.abandon(name))
        assert store.names() == [name]

    def test_a_retired_checkpoint_is_gone_and_others_stay(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        old, new = str(save(store, 1).name), str(save(store, 2).name)
        store.retire(old)
        assert store.names() == [new]
        _must_raise(StoreNotFound, lambda: store.manifest(old))

    def test_an_open_file_outlives_its_retirement(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        name = str(save(store, 1).name)
        image = image_of(1)
        file = store.open(name, image.name)
        store.retire(name)
        buffer = bytearray(file.size)
        if self.open_files_outlive_retirement:
            file.read_into(0, memoryview(buffer))
            assert buffer == image.view(0, image.size)
        else:
            _must_raise(StoreNotFound, lambda: file.read_into(0, memoryview(buffer)))
        file.close()

    def test_what_is_not_there_is_not_found(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        name = str(save(store, 1).name)
        _must_raise(StoreNotFound, lambda: store.open(name, "absent.bin"))
        _must_raise(StoreNotFound, lambda: store.open("../../etc", "passwd"))
        _must_raise(StoreNotFound, lambda: store.open(name, "../STORE.json"))
        _must_raise(StoreNotFound, lambda: store.manifest("e00000009-s000000000009-00000009"))

    def test_order_is_by_writer_epoch_then_step(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        for epoch, step in ((1, 900), (2, 10), (1, 5), (2, 30)):
            save(store, step, writer_epoch=epoch)
        order = [(found.name.writer_epoch, found.name.step) for found in committed(store)]
        assert order == [(2, 30), (2, 10), (1, 900), (1, 5)]


class _Sweeping:
    """Satisfies ImageSource: the store is swept in the middle of writing it."""

    def __init__(self, store: Store, image: MemoryImage) -> None:
        self.name, self.size, self.concurrent = image.name, image.size, False
        self.swept: list[str] = []
        self._store, self._image = store, image

    def view(self, start: int, stop: int) -> memoryview:
        self.swept += sweep(self._store)
        return self._image.view(start, stop)


def _must_raise(kind: type[BaseException], call: Any) -> None:
    # Not pytest.raises: what users import must not need pytest.
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")
