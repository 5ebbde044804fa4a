"""Races and refusals that a healthy machine never shows: each line of the store is reached for a reason."""

import errno
import os
from pathlib import Path

import pytest

from holdfast.checkpoints.find import committed
from holdfast.errors import CorruptCheckpoint, RunInUse, StoreError
from holdfast.stores.claims import WriterLease
from holdfast.stores.folder_place import FolderPlace
from holdfast.stores.owner import this_process
from holdfast.stores.place import WRITERS
from holdfast.stores.posix import PosixIO
from holdfast.stores.store import CheckpointStore
from holdfast.stores.stored_file import read_small
from holdfast.testing.fake_clock import FakeClock
from holdfast.testing.memory_image import image_of
from holdfast.testing.memory_io import ROOT, MemoryIO
from holdfast.testing.store_contract import save


def test_of_two_identities_the_first_stays() -> None:
    class Late(MemoryIO):
        """Another process makes the identity while we write ours."""

        def rename(self, parent: int, old: str, new: str) -> None:
            if new == "STORE.json" and self.kind(parent, new) is None:
                other = CheckpointStore(
                    "/run", io=MemoryIO(self.tree), uuid="1" * 8 + "-1111-1111-1111-" + "1" * 12
                )
                other.claim()
            super().rename(parent, old, new)

    io = Late()
    store = CheckpointStore("/run", io=io)
    assert store.claim() == 2
    assert store.uuid == "11111111-1111-1111-1111-111111111111"
    assert [name for name in io.tree.directories[ROOT] if name.endswith(".part")] == []


def _take(io: MemoryIO, *, at_least: int) -> int:
    place = FolderPlace("/run", io)
    place.prepare(WRITERS)
    return WriterLease(place).take(this_process("now"), at_least=at_least)


def test_losing_the_race_for_a_number_costs_one_number() -> None:
    class Crowded(MemoryIO):
        """Others claim 1 and 2 in the moment between our look and our attempt."""

        def list_names(self, directory: int) -> list[str]:
            names = super().list_names(directory)
            for taken in ("00000001.json", "00000002.json"):
                if taken not in names:
                    self.close(self.create(directory, taken))
            return names

    io = Crowded()
    assert _take(io, at_least=1) == 3


def test_numbers_do_not_wrap() -> None:
    io = MemoryIO()
    with pytest.raises(CorruptCheckpoint, match="beyond"):
        _take(io, at_least=10**8)


def test_a_claim_far_beyond_all_others_counts_for_nothing() -> None:
    io = MemoryIO()
    FolderPlace("/run", io).prepare(WRITERS)
    writers = io.open_directory(io.open_root("", create=True), WRITERS)
    for name in ("00000003.json", "99999999.json"):
        io.close(io.create(writers, name))
    assert _take(io, at_least=1) == 4


def test_a_refusal_stands_even_if_the_owner_cannot_be_named(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path / "run") as owner:
        owner.claim()
        os.rename(tmp_path / "run" / "writers", tmp_path / "run" / "elsewhere")
        with pytest.raises(RunInUse, match="another process"):
            CheckpointStore(tmp_path / "run").claim()


def test_a_file_system_without_locks_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refuse(file: int, command: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with CheckpointStore(tmp_path / "run") as store:
        assert store.claim() == 1


def test_a_lock_that_fails_for_another_reason_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def fail(file: int, command: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "lockf", fail)
    with pytest.raises(StoreError, match="Input/output"):
        CheckpointStore(tmp_path / "run").claim()


def test_a_file_system_without_fallocate_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ctypes

    from holdfast.stores import posix

    class NoFallocate:
        renameat2 = posix._libc.renameat2

        def fallocate(self, *args: object) -> int:
            ctypes.set_errno(errno.EOPNOTSUPP)
            return -1

    monkeypatch.setattr(posix, "_libc", NoFallocate())
    with CheckpointStore(tmp_path / "run") as store:
        save(store, 1, writer_epoch=store.claim())
        assert len(committed(store)) == 1


def test_a_record_that_shrinks_while_it_is_read_is_corrupt() -> None:
    class Shrinks(MemoryIO):
        def read_at(self, file: int, buffer: memoryview, offset: int) -> int:
            return 0

    io = Shrinks()
    io.tree.add_file(ROOT, "record", 5)
    io.tree.write(5, 0, b"abc")
    with pytest.raises(CorruptCheckpoint, match="shrank"):
        read_small(io, io.open_root("", create=False), "record", 100)


def test_a_data_file_that_shrinks_while_it_is_read_is_corrupt(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path / "run") as store:
        name = str(save(store, 1, writer_epoch=store.claim()).name)
        file = store.open(name, image_of(1).name)
        os.truncate(tmp_path / "run" / "ckpt" / name / image_of(1).name, 10)
        with pytest.raises(CorruptCheckpoint, match="ends at byte"):
            file.read_into(0, memoryview(bytearray(image_of(1).size)))
        file.close()
        file.close()  # twice is harmless


def test_a_manifest_that_cannot_be_read_is_replaced_by_its_copy() -> None:
    class BadSector(MemoryIO):
        def open_read(self, parent: int, name: str, *, direct: bool = False) -> int:
            if name == "MANIFEST":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().open_read(parent, name, direct=direct)

    io = MemoryIO()
    store = CheckpointStore("/run", io=io)
    save(store, 1, writer_epoch=store.claim())
    [found] = committed(CheckpointStore("/run", io=BadSector(io.tree)))
    assert found.manifest is not None


def test_a_directory_that_nfs_keeps_busy_is_left_for_later() -> None:
    class Busy(MemoryIO):
        def remove_directory(self, parent: int, name: str) -> None:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), name)

    store = CheckpointStore("/run", io=Busy())
    name = str(save(store, 1, writer_epoch=store.claim()).name)
    store.retire(name)
    assert store.names() == []
    assert store.leftovers() == [name]


def test_a_parent_that_may_not_be_listed_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with CheckpointStore(tmp_path / "run", io=PosixIO()) as store:
        assert store.claim() == 1


def test_a_fake_clock_never_goes_back() -> None:
    clock = FakeClock()
    before = clock.monotonic()
    clock.skew_wall(-1e6)
    assert clock.monotonic() == before
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1.0)
