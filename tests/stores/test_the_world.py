"""Real disks that are full, read-only or gone, and what a store says then. No simulated errors here."""

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.write import write_checkpoint
from holdfast.errors import StoreDenied, StoreError, StoreFull, StoreNotFound, StoreUnavailable
from holdfast.stores.base import KeyTaken
from holdfast.stores.os_errors import store_error
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_image import MemoryImage
from holdfast.testing.store_contract import draft, newest_valid, save


def big(step: int, size: int) -> MemoryImage:
    return MemoryImage("big.bin", bytes([step]) * size)


def restored_step(store: CheckpointStore) -> int:
    loaded = newest_valid(store)
    assert loaded is not None
    return loaded.found.step


def mounted(path: Path, *options: str) -> Iterator[Path]:
    path.mkdir()
    done = subprocess.run(["mount", *options, str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "mnt", "-t", "tmpfs", "-o", "size=24m", "tmpfs")


@pytest.fixture
def small_ext4(tmp_path: Path) -> Iterator[Path]:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    image = tmp_path / "disk.img"
    with open(image, "wb") as file:
        file.truncate(48 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, capture_output=True)
    yield from mounted(tmp_path / "mnt", "-o", "loop", str(image))


def fill_up(mount: Path) -> None:
    store = CheckpointStore(mount / "run", spare_bytes=0)
    epoch = store.claim()
    write_checkpoint(store, draft(1, writer_epoch=epoch), [big(1, 6 << 20)])
    free = os.statvfs(mount).f_bavail * os.statvfs(mount).f_frsize
    # `begin` sees the lack; and where it does not (another job fills the disk meanwhile), the writing does.
    with pytest.raises(StoreFull, match="free"):
        write_checkpoint(store, draft(2, writer_epoch=epoch), [big(2, free)])
    name = str(draft(3, writer_epoch=epoch).name)
    store.begin(name, 1)
    with pytest.raises(StoreFull, match="No space left"):
        store.write(name, big(3, free + (8 << 20)))
    store.abandon(name)
    assert restored_step(store) == 1
    write_checkpoint(store, draft(4, writer_epoch=epoch), [big(4, 1 << 20)])
    assert restored_step(store) == 4
    store.release()


@pytest.mark.system
def test_a_full_tmpfs_fails_the_save_and_nothing_else(small_tmpfs: Path) -> None:
    fill_up(small_tmpfs)


@pytest.mark.system
def test_a_full_ext4_fails_the_save_and_nothing_else(small_ext4: Path) -> None:
    fill_up(small_ext4)


@pytest.mark.system
def test_a_read_only_mount_is_read_and_refuses_writes_clearly(small_tmpfs: Path) -> None:
    store = CheckpointStore(small_tmpfs / "run", spare_bytes=0)
    epoch = store.claim()
    save(store, 1, writer_epoch=epoch)
    store.release()
    subprocess.run(["mount", "-o", "remount,ro", str(small_tmpfs)], check=True)
    assert restored_step(store) == 1
    with pytest.raises(StoreDenied, match="Read-only"):
        store.claim()
    subprocess.run(["mount", "-o", "remount,rw", str(small_tmpfs)], check=True)
    epoch = store.claim()
    save(store, 2, writer_epoch=epoch)
    store.release()


@pytest.fixture
def file_size_limit() -> Iterator[None]:
    """A real ENOSPC-like wall without mounting: files stop growing at 20 MB, after a true short write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("file_size_limit")
def test_a_file_that_may_not_grow_fails_the_save_and_nothing_else(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run")
    epoch = store.claim()
    save(store, 1, writer_epoch=epoch)
    with pytest.raises(StoreFull, match="File too large"):
        write_checkpoint(store, draft(2, writer_epoch=epoch), [big(2, 40 << 20)])
    assert restored_step(store) == 1
    assert len(os.listdir(Path(store.where, "ckpt"))) == 1, "the partial was not removed"
    save(store, 3, writer_epoch=epoch)
    assert restored_step(store) == 3
    store.release()


def test_a_vanished_directory_fails_each_save_and_recovers_when_back(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run")
    epoch = store.claim()
    save(store, 1, writer_epoch=epoch)
    os.rename(tmp_path / "run", tmp_path / "away")
    for step in (2, 3):
        with pytest.raises(StoreNotFound, match="mounted"):
            save(store, step, writer_epoch=epoch)
    assert not (tmp_path / "run").exists(), "a save must not found a new store in its place"
    os.rename(tmp_path / "away", tmp_path / "run")
    save(store, 4, writer_epoch=epoch)
    assert [found.step for found in committed(store)] == [4, 1]
    store.release()


def test_a_file_in_the_way_of_the_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("not a directory")
    with pytest.raises(StoreError, match=str(tmp_path / "run")):
        CheckpointStore(tmp_path / "run").claim()
    with pytest.raises(StoreError, match=str(tmp_path / "run")):
        CheckpointStore(tmp_path / "run").names()


def test_the_store_may_lie_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "scratch")
    with CheckpointStore(tmp_path / "runs" / "one") as store:
        save(store, 1, writer_epoch=store.claim())
    assert restored_step(CheckpointStore(tmp_path / "scratch" / "one")) == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ENOSPC", StoreFull), ("EDQUOT", StoreFull), ("EFBIG", StoreFull), ("EACCES", StoreDenied),
        ("EPERM", StoreDenied), ("EROFS", StoreDenied), ("ELOOP", StoreDenied), ("ENOENT", StoreNotFound),
        ("ENOTDIR", StoreNotFound), ("EEXIST", KeyTaken), ("EIO", StoreUnavailable),
        ("ESTALE", StoreUnavailable), ("ETIMEDOUT", StoreUnavailable), ("EINTR", StoreUnavailable),
    ],
)  # fmt: skip
def test_each_errno_has_its_class_its_place_and_its_advice(code: str, kind: type[StoreError]) -> None:
    import errno

    number = getattr(errno, code)
    error = store_error(OSError(number, os.strerror(number)), "commit", "/scratch/run")
    assert type(error) is kind
    assert "cannot commit in /scratch/run" in error.message
    assert error.hint
