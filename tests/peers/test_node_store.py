"""The store of one node: the contract of all stores, and files that come after the commit."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.read import read_files
from holdfast.checkpoints.write import write_checkpoint
from holdfast.errors import CorruptCheckpoint, InternalError, StoreError, StoreFull, StoreNotFound
from holdfast.format.manifest import FileRecord
from holdfast.stores.base import Store
from holdfast.stores.leftovers import sweep
from holdfast.stores.locations import node_store
from holdfast.stores.posix import PosixIO
from holdfast.stores.store import CheckpointStore
from holdfast.testing.failing_io import FailingIO
from holdfast.testing.memory_image import MemoryImage, image_of
from holdfast.testing.memory_io import MemoryIO
from holdfast.testing.store_contract import StoreContract, draft, save

UUID = "00000000-0000-4000-8000-000000000001"


class TestNodeStore(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        return node_store(tmp_path / "run", uuid=UUID)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def record_of(tmp_path: Path, image: MemoryImage) -> FileRecord:
    return node_store(tmp_path / "elsewhere").write(str(draft(1).name), image)


def test_a_file_can_be_added_to_what_a_directory_store_has_committed(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path / "run") as own:
        epoch = own.claim()
        name = str(save(own, 3, writer_epoch=epoch).name)
        node = node_store(tmp_path / "run")
        extra = MemoryImage("extra-r00001.bin", b"partner" * 1000)
        node.write(name, extra)
        assert node.held(name) == {image_of(3).name: image_of(3).size, extra.name: extra.size}
        [found] = committed(own)
        assert set(read_files(own, found)) == {image_of(3).name}
        own.retire(name)
        assert names_in(tmp_path / "run" / "ckpt") == set()


def test_a_place_that_is_being_filled_is_seen_by_nobody_until_it_is_settled(tmp_path: Path) -> None:
    origin = node_store(tmp_path / "origin", uuid=UUID)
    name, image = str(save(origin, 4).name), image_of(4)
    fresh = node_store(tmp_path / "fresh", uuid=UUID)
    fresh.write(name, image)
    assert fresh.names() == []
    assert CheckpointStore(tmp_path / "fresh").names() == []
    with pytest.raises(StoreNotFound):
        fresh.manifest(name)
    fresh.publish(name, origin.manifest(name))
    fresh.publish(name, origin.manifest(name))
    [found] = committed(CheckpointStore(tmp_path / "fresh"))
    assert read_files(fresh, found)[image.name] == image.view(0, image.size)
    assert fresh.uuid == CheckpointStore(tmp_path / "fresh").uuid == UUID


def test_another_manifest_for_the_same_name_is_refused(tmp_path: Path) -> None:
    one, two = node_store(tmp_path / "one", uuid=UUID), node_store(tmp_path / "two", uuid=UUID)
    for store, notes in ((one, "a"), (two, "b")):
        write_checkpoint(store, draft(1, nonce="00000001", notes=notes), [image_of(1)])
    [name] = one.names()
    with pytest.raises(StoreError, match="another manifest"):
        one.publish(name, two.manifest(name))


def test_other_bytes_than_expected_never_get_the_name(tmp_path: Path) -> None:
    right, wrong = MemoryImage("a.bin", b"right" * 999), MemoryImage("a.bin", b"wrong" * 999)
    expect, name = record_of(tmp_path, right), str(draft(2).name)
    node = node_store(tmp_path / "run")
    with pytest.raises(CorruptCheckpoint, match=r"a\.bin"):
        node.write(name, wrong, expect=expect)
    assert node.held(name) == {}
    assert node.write(name, right, expect=expect) == expect


def test_a_damaged_file_is_replaced_and_a_good_one_is_not_overwritten(tmp_path: Path) -> None:
    node = node_store(tmp_path / "run", uuid=UUID)
    name, image = str(save(node, 5).name), image_of(5)
    path = tmp_path / "run" / "ckpt" / name / image.name
    with pytest.raises(StoreError, match="names are never reused"):
        node.write(name, image)
    path.write_bytes(b"damage" + path.read_bytes()[6:])
    [found] = committed(node)
    assert found.manifest is not None
    node.write(name, image, expect=found.manifest.files[0], replace=True)
    assert read_files(node, found)[image.name] == image.view(0, image.size)
    assert names_in(path.parent) == {image.name, "MANIFEST", "MANIFEST.2"}


def test_what_a_manifest_lists_can_only_become_what_it_says_whoever_asks(tmp_path: Path) -> None:
    node = node_store(tmp_path / "run", uuid=UUID)
    name, image = str(save(node, 5).name), image_of(5)
    other = MemoryImage(image.name, b"x" * image.size)
    for expect in (None, record_of(tmp_path, other)):
        with pytest.raises(CorruptCheckpoint, match="other bytes"):
            node.write(name, other, expect=expect, replace=True)
    [found] = committed(node)
    assert read_files(node, found)[image.name] == image.view(0, image.size)


def test_a_manifest_that_is_damaged_twice_is_mended_by_settling_again(tmp_path: Path) -> None:
    node = node_store(tmp_path / "run", uuid=UUID)
    name = str(save(node, 5).name)
    manifest = node.manifest(name)
    for copy in ("MANIFEST", "MANIFEST.2"):
        (tmp_path / "run" / "ckpt" / name / copy).write_bytes(b"damage")
    with pytest.raises(CorruptCheckpoint):
        node.manifest(name)
    node.publish(name, manifest)
    assert node.manifest(name) == manifest
    assert node.names() == [name]


def test_what_a_killed_process_was_writing_is_swept_by_the_next_one(tmp_path: Path) -> None:
    node = node_store(tmp_path / "run")
    name = str(draft(6).name)
    node.write(name, MemoryImage("a.bin", b"a"))
    place = tmp_path / "run" / "ckpt" / f"{name}.incoming"
    (place / "part-0123456789abcdef").write_bytes(b"half of something")
    assert "part-0123456789abcdef" not in node.held(name)
    with pytest.raises(StoreNotFound):
        node.open(name, "part-0123456789abcdef")
    node.write(name, MemoryImage("b.bin", b"b"))
    assert names_in(place) == {"a.bin", "b.bin"}
    assert node.leftovers() == [name]
    node.abandon(name)
    assert names_in(tmp_path / "run" / "ckpt") == set()


def test_what_is_settled_at_the_last_moment_is_not_taken_away(tmp_path: Path) -> None:
    class SettledMeanwhile(PosixIO):
        """Right before the first call that changes anything, another thread settles the place."""

        settle: Callable[[], None] | None = None

        def _meanwhile(self) -> None:
            if self.settle is not None:
                settle, self.settle = self.settle, None
                settle()

        def rename(self, parent: int, old: str, new: str) -> None:
            self._meanwhile()
            super().rename(parent, old, new)

        def unlink(self, parent: int, name: str) -> None:
            self._meanwhile()
            super().unlink(parent, name)

    origin = node_store(tmp_path / "origin", uuid=UUID)
    name, image = str(save(origin, 4).name), image_of(4)
    manifest, other = origin.manifest(name), node_store(tmp_path / "run", uuid=UUID)
    other.write(name, image)
    io = SettledMeanwhile()
    io.settle = lambda: other.publish(name, manifest)
    with pytest.raises(InternalError, match="is committed"):
        node_store(tmp_path / "run", uuid=UUID, io=io).abandon(name)
    [found] = committed(other)
    assert read_files(other, found)[image.name] == image.view(0, image.size)


def test_a_place_that_was_taken_away_while_it_was_filled_is_never_committed(tmp_path: Path) -> None:
    node = node_store(tmp_path / "run", uuid=UUID)
    first, second = (image_of(1, name=f"r00000-{i:03d}.safetensors") for i in range(2))

    class TakenAway(MemoryImage):
        def view(self, start: int, stop: int) -> memoryview:
            node_store(tmp_path / "run", uuid=UUID).abandon("e00000001-s000000000001-00000001")
            return super().view(start, stop)

    gone = TakenAway(first.name, bytes(first.view(0, first.size)))
    for sources in ([gone, second], [second, gone]):
        with pytest.raises(StoreError):
            write_checkpoint(node, draft(1, nonce="00000001"), sources)
        assert node.names() == []
        assert names_in(tmp_path / "run" / "ckpt") == set()


def test_a_retirement_that_was_killed_is_finished_by_the_next_sweep(tmp_path: Path) -> None:
    node = node_store(tmp_path / "run", uuid=UUID)
    old, new = str(save(node, 1).name), str(save(node, 2).name)
    place = tmp_path / "run" / "ckpt" / old
    (place / "MANIFEST").rename(place / "MANIFEST.dead")
    assert sweep(node) == [old]
    assert names_in(tmp_path / "run" / "ckpt") == {new}


def test_a_sweep_that_was_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    node = node_store(tmp_path / "run", uuid=UUID)
    name = str(draft(6).name)
    for _ in range(2):
        node.write(name, MemoryImage("a.bin", b"a"))
        ckpt = tmp_path / "run" / "ckpt"
        if not (ckpt / f"{name}.leaving").exists():
            (ckpt / f"{name}.incoming").rename(ckpt / f"{name}.leaving")
    assert names_in(ckpt) == {f"{name}.incoming", f"{name}.leaving"}
    assert sweep(node) == [name]
    assert names_in(ckpt) == set()


def test_a_file_for_a_checkpoint_that_is_retired_meanwhile_is_refused(tmp_path: Path) -> None:
    node = node_store(tmp_path / "run", uuid=UUID)
    name = str(save(node, 7).name)

    class Slow(MemoryImage):
        def view(self, start: int, stop: int) -> memoryview:
            (tmp_path / "run" / "ckpt" / name / "MANIFEST").rename(
                tmp_path / "run" / "ckpt" / name / "MANIFEST.dead"
            )
            return super().view(start, stop)

    with pytest.raises(StoreNotFound, match="retired meanwhile"):
        node.write(name, Slow("late.bin", b"x"))
    assert "late.bin" not in node.held(name)


def test_a_full_node_says_so_before_it_writes(tmp_path: Path) -> None:
    node = node_store(tmp_path / "run", spare_bytes=1 << 60)
    with pytest.raises(StoreFull, match="keep fewer"):
        node.write(str(draft(1).name), MemoryImage("a.bin", b"a"))


@pytest.mark.parametrize("after", [False, True])
def test_whatever_call_fails_the_next_attempt_ends_well_and_nothing_half_is_committed(after: bool) -> None:
    origin = node_store("/origin", uuid=UUID, io=MemoryIO())
    name, image = str(save(origin, 8).name), image_of(8)
    manifest = origin.manifest(name)
    for nth in range(1, 1000):
        io = FailingIO(MemoryIO(), nth, after=after)
        node = node_store("/run", uuid=UUID, io=io)
        try:
            node.write(name, image)
            node.publish(name, manifest)
        except StoreError:
            io.armed = False
            if name in node.names():
                assert node.held(name) == {image.name: image.size}
            elif image.name not in (node.held(name) if name in node.leftovers() else {}):
                node.write(name, image)
            node.publish(name, manifest)
        io.armed = False
        [found] = committed(node_store("/run", io=io))
        assert read_files(node, found)[image.name] == image.view(0, image.size)
        if not io.fired:
            break
    assert 20 < nth < 200


class _Halting(MemoryImage):
    """Stops in the middle of being written until it is told to go on."""

    def __init__(self, name: str, data: bytes, begun: int, go_on: int) -> None:
        super().__init__(name, data)
        self._begun, self._go_on = begun, go_on

    def view(self, start: int, stop: int) -> memoryview:
        os.write(self._begun, b"x")
        os.read(self._go_on, 1)
        return super().view(start, stop)


def test_two_processes_of_a_node_write_into_one_place(tmp_path: Path) -> None:
    name, data = str(draft(7).name), b"of the other process"
    begun_read, begun = os.pipe()
    go_on, say_go_on = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            node_store(tmp_path, uuid=UUID).write(name, _Halting("b-r00001.bin", data, begun, go_on))
            status = 0
        finally:
            os._exit(status)
    assert os.read(begun_read, 1) == b"x"
    mine = node_store(tmp_path, uuid=UUID)
    # This one sweeps what the dead left; the other lives.
    mine.write(name, MemoryImage("a-r00000.bin", b"mine"))
    os.write(say_go_on, b"x")
    assert os.waitpid(child, 0)[1] == 0, "its half-written file was taken away"
    assert mine.held(name) == {"a-r00000.bin": 4, "b-r00001.bin": len(data)}
    for handle in (begun_read, begun, go_on, say_go_on):
        os.close(handle)


def test_what_a_dead_process_was_writing_is_swept(tmp_path: Path) -> None:
    name = str(draft(7).name)
    begun_read, begun = os.pipe()
    go_on, say_go_on = os.pipe()
    child = os.fork()
    if child == 0:
        node_store(tmp_path, uuid=UUID).write(name, _Halting("b-r00001.bin", b"half", begun, go_on))
        os._exit(0)
    assert os.read(begun_read, 1) == b"x"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    place = tmp_path / "ckpt" / f"{name}.incoming"
    assert [n for n in names_in(place) if n.startswith("part-")]
    node_store(tmp_path, uuid=UUID).write(name, MemoryImage("a-r00000.bin", b"mine"))
    assert names_in(place) == {"a-r00000.bin"}
    for handle in (begun_read, begun, go_on, say_go_on):
        os.close(handle)
