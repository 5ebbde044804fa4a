"""The real system calls, one by one, and the memory double held to the same behaviour."""

import ctypes
import errno
import os
from pathlib import Path

import pytest

from holdfast.stores import posix
from holdfast.stores.io import StoreIO
from holdfast.stores.posix import PosixIO
from holdfast.testing.memory_io import MemoryIO


@pytest.fixture(params=["posix", "posix, buffered", "memory"])
def io(request: pytest.FixtureRequest) -> StoreIO:
    return {"posix": PosixIO(), "posix, buffered": PosixIO(direct=False), "memory": MemoryIO()}[request.param]


@pytest.fixture
def root(io: StoreIO, tmp_path: Path) -> int:
    return io.open_root(str(tmp_path / "a" / "b"), create=True)


def make(io: StoreIO, root: int, name: str, data: bytes) -> None:
    file = io.create(root, name)
    assert io.write_at(file, memoryview(data), 0) == len(data)
    io.fsync(file)
    io.close(file)


def content(io: StoreIO, root: int, name: str) -> bytes:
    file = io.open_read(root, name)
    buffer = bytearray(io.size(file))
    assert io.read_at(file, memoryview(buffer), 0) == len(buffer)
    io.close(file)
    return bytes(buffer)


def test_create_and_make_directory_never_replace(io: StoreIO, root: int) -> None:
    make(io, root, "file", b"old")
    io.make_directory(root, "directory")
    for name in ("file", "directory"):
        with pytest.raises(FileExistsError):
            io.create(root, name)
        with pytest.raises(FileExistsError):
            io.make_directory(root, name)
    assert content(io, root, "file") == b"old"


def test_rename_never_replaces(io: StoreIO, root: int) -> None:
    make(io, root, "old", b"1")
    make(io, root, "new", b"2")
    with pytest.raises(FileExistsError):
        io.rename(root, "old", "new")
    assert (content(io, root, "old"), content(io, root, "new")) == (b"1", b"2")
    io.rename(root, "old", "third")
    assert sorted(io.list_names(root)) == ["new", "third"]
    with pytest.raises(FileNotFoundError):
        io.rename(root, "old", "fourth")


class OldKernel:
    """A C library whose calls all fail with one errno, as on a file system that lacks them."""

    def __init__(self, code: int, *, times: int = 10**9) -> None:
        self._code, self._times = code, times
        self.calls = 0

    def _fail(self, *args: object) -> int:
        self.calls += 1
        ctypes.set_errno(self._code)
        return -1 if self.calls <= self._times else 0

    renameat2 = fallocate = _fail


@pytest.mark.parametrize("links", [True, False], ids=["by link", "by looking first"])
def test_rename_never_replaces_where_the_flag_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def no_links(*args: object, **more: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(posix, "_libc", OldKernel(errno.EINVAL))
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    io = PosixIO()
    root = io.open_root(str(tmp_path), create=True)
    test_rename_never_replaces(io, root)
    io.close(root)


def test_signals_during_preallocation_do_not_fail_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kernel, calls in ((OldKernel(errno.EINTR, times=3), 4), (OldKernel(errno.EINTR), 100)):
        monkeypatch.setattr(posix, "_libc", kernel)
        PosixIO().preallocate(0, 4096)
        assert kernel.calls == calls


def test_a_full_disk_shows_in_preallocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posix, "_libc", OldKernel(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        PosixIO().preallocate(0, 4096)


def test_a_directory_that_needs_no_sync_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for code, is_fine in ((errno.EINVAL, True), (errno.EIO, False)):

        def fail(handle: int, code: int = code) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "fsync", fail)
        if is_fine:
            PosixIO().fsync_directory(0)
        else:
            with pytest.raises(OSError, match="Input/output"):
                PosixIO().fsync_directory(0)
        with pytest.raises(OSError):  # noqa: PT011  for a file, every refusal counts
            PosixIO().fsync(0)


def test_truncate_preallocate_and_sparse_writes_give_zeros(io: StoreIO, root: int) -> None:
    file = io.create(root, "file")
    io.preallocate(file, 8192)
    assert io.write_at(file, memoryview(b"x"), 5000) == 1
    io.truncate(file, 6000)
    assert io.size(file) == 6000
    io.close(file)
    assert content(io, root, "file") == bytes(5000) + b"x" + bytes(999)


def test_reads_at_the_end_are_short_then_empty(io: StoreIO, root: int) -> None:
    make(io, root, "file", b"abc")
    file = io.open_read(root, "file")
    buffer = bytearray(10)
    assert io.read_at(file, memoryview(buffer), 1) == 2
    assert io.read_at(file, memoryview(buffer), 3) == 0
    io.close(file)


def test_kind_and_open_tell_files_from_directories(io: StoreIO, root: int) -> None:
    make(io, root, "file", b"")
    io.make_directory(root, "directory")
    assert [io.kind(root, name) for name in ("file", "directory", "absent")] == ["file", "directory", None]
    with pytest.raises(NotADirectoryError):
        io.open_directory(root, "file")
    with pytest.raises(OSError, match="regular"):
        io.open_read(root, "directory")
    with pytest.raises(FileNotFoundError):
        io.open_read(root, "absent")


def test_only_empty_directories_are_removed(io: StoreIO, root: int) -> None:
    io.make_directory(root, "directory")
    inside = io.open_directory(root, "directory")
    make(io, inside, "file", b"")
    with pytest.raises(OSError, match="not empty"):
        io.remove_directory(root, "directory")
    io.unlink(inside, "file")
    io.close(inside)
    io.remove_directory(root, "directory")
    assert io.list_names(root) == []


def test_what_is_open_stays_readable_after_unlink(io: StoreIO, root: int) -> None:
    make(io, root, "file", b"still here")
    file = io.open_read(root, "file")
    io.unlink(root, "file")
    buffer = bytearray(10)
    assert io.read_at(file, memoryview(buffer), 0) == 10
    assert buffer == b"still here"
    io.close(file)


def test_appends_add_up(io: StoreIO, root: int) -> None:
    io.append(root, "log", b"one\n")
    io.append(root, "log", b"two\n")
    assert content(io, root, "log") == b"one\ntwo\n"


def test_a_lock_excludes_until_unlocked(io: StoreIO, root: int) -> None:
    held = io.lock(root, "LOCK")
    assert held is not None
    with pytest.raises(BlockingIOError):
        io.lock(root, "LOCK")
    io.unlock(held)
    again = io.lock(root, "LOCK")
    assert again is not None
    io.unlock(again)


def test_free_bytes_is_a_real_number(io: StoreIO, root: int) -> None:
    assert io.free_bytes(root) > 0


def test_a_link_is_never_followed(tmp_path: Path) -> None:
    io = PosixIO()
    root = io.open_root(str(tmp_path), create=False)
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "file").write_text("x")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "file-link").symlink_to("target/file")
    with pytest.raises(OSError):  # noqa: PT011  ENOTDIR or ELOOP, by kernel
        io.open_directory(root, "link")
    for act in (io.open_read, io.create):
        with pytest.raises(OSError):  # noqa: PT011  ELOOP or EEXIST
            act(root, "file-link")
    with pytest.raises(OSError, match="symbolic links"):
        io.append(root, "file-link", b"y")
    assert io.kind(root, "link") == "other"
    assert (tmp_path / "target" / "file").read_text() == "x"


def test_direct_files_take_odd_lengths_and_addresses_all_the_same(tmp_path: Path) -> None:
    io = PosixIO()
    root = io.open_root(str(tmp_path), create=True)
    data = os.urandom(10_001)
    file = io.create(root, "file", direct=True)
    assert io.write_at(file, memoryview(data)[1:], 0) == 10_000
    io.close(file)
    file = io.open_read(root, "file", direct=True)
    buffer = bytearray(10_003)
    assert io.read_at(file, memoryview(buffer)[3:], 0) == 10_000
    assert buffer[3:] == data[1:]
    io.close(file)


def test_an_invalid_argument_that_is_not_about_direct_io_is_raised(tmp_path: Path) -> None:
    io = PosixIO(direct=False)
    root = io.open_root(str(tmp_path), create=True)
    file = io.create(root, "file", direct=True)
    with pytest.raises(OSError, match="Invalid"):
        io.write_at(file, memoryview(b"x"), -1)
    io.close(file)
    file = io.open_read(root, "file")
    with pytest.raises(OSError, match="Invalid"):
        io.read_at(file, memoryview(bytearray(1)), -2)
    io.close(file)


def test_a_bad_descriptor_is_an_error_in_every_call() -> None:
    for io in (PosixIO(), MemoryIO()):
        for act in (io.fsync, io.fsync_directory, io.close, io.size, io.list_names):
            with pytest.raises(OSError, match="Bad file descriptor"):
                act(987_654)
    with pytest.raises(OSError, match="Bad file descriptor"):
        PosixIO().preallocate(987_654, 1)


def test_a_folder_of_an_automounter_above_the_run_is_no_reason_not_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, parent = os.fsync, tmp_path.stat().st_ino

    def fsync(file: int) -> None:
        # As autofs answers.
        if os.fstat(file).st_ino == parent:
            raise OSError(errno.EINVAL, "Invalid argument")
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    root = PosixIO().open_root(str(tmp_path / "home" / "run"), create=True)
    os.close(root)
