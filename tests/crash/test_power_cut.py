"""A real kernel loses power: ext4 on a loop device, shut down unflushed while a writer saves and prunes.

The crash-state model finds what ext4 hides; this finds what the model forgot.
"""

import fcntl
import os
import random
import shutil
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.retain import Ledger, Retention, prune
from holdfast.checkpoints.verify import verify
from holdfast.stores.posix import PosixIO
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_image import image_of
from holdfast.testing.store_contract import newest_valid, save

pytestmark = pytest.mark.system
TRIALS = 1000 if os.environ.get("HOLDFAST_TORTURE") else 15
# ioctl(fd, _IOR('X', 125, u32), 2): stop now, flush nothing, not even the journal.
SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, struct.pack("I", 2)


class Spoken(CheckpointStore):
    def retire(self, name: str) -> None:
        os.write(1, f"retiring {name}\n".encode())
        super().retire(name)


class Careless(PosixIO):
    def fsync(self, file: int) -> None:
        pass

    def fsync_directory(self, directory: int) -> None:
        pass


def write_until_killed(folder: Path, io: PosixIO) -> None:
    store = Spoken(folder, spare_bytes=0, io=io)
    epoch, ledger = store.claim(), Ledger()
    for step in range(1, 10**6):
        name = str(save(store, step, writer_epoch=epoch).name)
        os.write(1, f"saved {name}\n".encode())
        ledger.committed.add(name)
        prune(store, Retention(latest=2), ledger)


class Disk:
    """An ext4 image that can lose power."""

    def __init__(self, folder: Path) -> None:
        self.image, self.mount_point = folder / "disk.img", folder / "mnt"
        self.mount_point.mkdir()
        with open(self.image, "wb") as file:
            file.truncate(64 << 20)
        subprocess.run(["mkfs.ext4", "-q", str(self.image)], check=True, capture_output=True)

    def mount(self) -> None:
        command = ["mount", "-o", "loop", str(self.image), str(self.mount_point)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"cannot mount here: {done.stderr.strip()}")

    def cut_power(self) -> None:
        directory = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(directory, SHUTDOWN, NO_LOG_FLUSH)
        finally:
            os.close(directory)

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.mount_point)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs root and mkfs.ext4")
    disk = Disk(tmp_path)
    disk.mount()
    yield disk
    disk.unmount()


def promised_until_the_cut(disk: Disk, lines: int, *, careless: bool = False) -> tuple[list[str], set[str]]:
    """Let a writer speak for a while, cut the power, and return what it had acknowledged and was retiring."""
    hear, speak = os.pipe()
    writer = os.fork()
    if writer == 0:
        try:
            os.dup2(speak, 1)
            os.close(hear)
            write_until_killed(disk.mount_point / "run", Careless() if careless else PosixIO())
        finally:
            os._exit(1)
    os.close(speak)
    with open(hear) as pipe:
        heard = [pipe.readline().split() for _ in range(lines)]
        # What it says from here on may come after the cut, so it counts as retired but not as saved.
        disk.cut_power()
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        heard_late = [line.split() for line in pipe]
    saved = [name for word, name in heard if word == "saved"]
    retiring = {line[1] for line in heard + heard_late if line[0] == "retiring" and len(line) == 2}
    return saved, retiring


def test_no_power_cut_loses_an_acknowledged_checkpoint(
    disk: Disk, counted: Callable[[str, int, str, int], None]
) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    for trial in range(TRIALS):
        saved, retiring = promised_until_the_cut(disk, chance.randrange(1, 12))
        disk.unmount()
        disk.mount()
        store = CheckpointStore(disk.mount_point / "run")
        whole = {str(found.name) for found in committed(store) if verify(store, found).is_whole}
        lost = set(saved) - retiring - whole
        assert not lost, f"trial {trial} of seed {seed}"
        unsound = {str(found.name) for found in committed(store) if found.manifest} - whole
        assert not unsound, f"a manifest over bad data in trial {trial} of seed {seed}"
        loaded = newest_valid(store)
        assert loaded is not None
        image = image_of(loaded.found.step)
        assert loaded.files[image.name] == image.view(0, image.size)
    counted("power cuts of a real ext4 while a writer saves and prunes", TRIALS, "lost or unsound", 0)


def test_a_writer_that_skips_fsync_is_caught_by_this_very_test(disk: Disk) -> None:
    for _ in range(5):
        saved, retiring = promised_until_the_cut(disk, 6, careless=True)
        disk.unmount()
        disk.mount()
        store = CheckpointStore(disk.mount_point / "run")
        if set(saved) - retiring - set(store.names()):
            return
    pytest.fail("five power cuts lost nothing although nothing was ever synced")
