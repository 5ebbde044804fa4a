"""What killed writers leave is removed when its room is needed, and never while anybody could use it."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.verify import verify
from holdfast.errors import StoreFull
from holdfast.format.sealed import seal, unseal
from holdfast.stores.locations import node_store
from holdfast.stores.posix import PosixIO
from holdfast.stores.store import CheckpointStore
from holdfast.testing.fake_clock import FakeClock
from holdfast.testing.forwarding_io import ForwardingIO
from holdfast.testing.memory_image import image_of
from holdfast.testing.memory_io import MemoryIO
from holdfast.testing.store_contract import draft, save

# What one checkpoint of `image_of` and its free-space check want, and a little more.
ROOM = (16 << 20) + (4 << 20) + 8192 + 40_000


class SmallDisk(ForwardingIO):
    """A folder on a disk of so many bytes."""

    def __init__(self, folder: Path, capacity: int) -> None:
        super().__init__(PosixIO())
        self._folder, self._capacity = folder, capacity

    def free_bytes(self, directory: int) -> int:
        used = sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())
        return self._capacity - used


def killed_while_saving(run: Path, step: int) -> None:
    """Another process that begins a checkpoint, writes its data, and dies."""
    if (child := os.fork()) == 0:
        try:
            store = CheckpointStore(run)
            name = str(draft(step, writer_epoch=store.claim()).name)
            store.begin(name, 0)
            store.write(name, image_of(step, values=100_000))
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def unfinished(run: Path) -> list[str]:
    return sorted(place.name for place in (run / "ckpt").iterdir() if not (place / "MANIFEST").exists())


def elsewhere(run: Path) -> None:
    """As if all writers so far had run on machines that nobody can ask any more."""
    for claim in (run / "writers").iterdir():
        record = unseal(claim.read_bytes())
        owner = {**record["owner"], "boot_id": "another", "host": "pod-7f9c"}
        claim.write_bytes(seal({**record, "owner": owner}))


def test_killed_during_a_save_on_a_nearly_full_disk_it_saves_again(tmp_path: Path) -> None:
    killed_while_saving(tmp_path, 1)
    assert len(unfinished(tmp_path)) == 1
    with CheckpointStore(tmp_path, io=SmallDisk(tmp_path, ROOM)) as store:
        save(store, 2, writer_epoch=store.claim())
        assert unfinished(tmp_path) == []
        assert [found.step for found in committed(store)] == [2]


def test_what_replaced_pods_left_goes_when_they_cannot_commit_any_more(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        killed_while_saving(tmp_path, step)
        elsewhere(tmp_path)
    clock = FakeClock()
    with CheckpointStore(tmp_path, io=SmallDisk(tmp_path, ROOM), clock=clock) as store:
        epoch = store.claim()
        clock.advance(119)
        with pytest.raises(StoreFull):
            save(store, 4, writer_epoch=epoch)
        assert len(unfinished(tmp_path)) == 3, "its writer may not have seen our claim yet"
        clock.advance(2)
        save(store, 4, writer_epoch=epoch)
        assert unfinished(tmp_path) == []


def test_a_full_quota_gives_back_what_dead_writers_left(tmp_path: Path) -> None:
    class Quota(ForwardingIO):
        is_full = False

        def preallocate(self, file: int, size: int) -> None:
            if self.is_full:
                raise OSError(errno.EDQUOT, "quota")

    killed_while_saving(tmp_path, 1)
    elsewhere(tmp_path)
    clock, disk = FakeClock(), Quota(PosixIO())
    with CheckpointStore(tmp_path, io=disk, clock=clock) as store:
        epoch = store.claim()
        clock.advance(200)
        disk.is_full = True
        with pytest.raises(StoreFull):
            save(store, 2, writer_epoch=epoch)
        assert unfinished(tmp_path) == []


def test_a_rank_that_joined_never_sweeps_what_the_others_have_begun(tmp_path: Path) -> None:
    class Full(ForwardingIO):
        def preallocate(self, file: int, size: int) -> None:
            raise OSError(errno.ENOSPC, "full")

    with CheckpointStore(tmp_path) as first, CheckpointStore(tmp_path, io=Full(PosixIO())) as second:
        name = str(draft(1, writer_epoch=first.claim()).name)
        first.begin(name, 0)
        first.write(name, image_of(1))
        second.join(first.writer_epoch)
        with pytest.raises(StoreFull):
            second.write(name, image_of(1, name="other.bin"))
        assert (tmp_path / "ckpt" / name / image_of(1).name).exists()
        first.abandon(name)


class CommitsMeanwhile(ForwardingIO):
    """Between our look at a place and the first file we remove there, its writer commits."""

    commit: Callable[[], None] | None = None

    def unlink(self, parent: int, name: str) -> None:
        if self.commit is not None:
            commit, self.commit = self.commit, None
            commit()
        super().unlink(parent, name)


def test_a_writer_that_commits_at_the_last_moment_loses_nothing() -> None:
    memory = MemoryIO()
    slow = CheckpointStore("/run", io=memory)
    done = save(slow, 1, writer_epoch=slow.claim())
    slow.release()
    # Back to the moment before its rename: it has looked at the claims, and ours came right after.
    ckpt = memory.tree.directories[memory.tree.directories[0]["ckpt"]]
    place = memory.tree.directories[ckpt[str(done.name)]]
    place["MANIFEST.part"] = place.pop("MANIFEST")
    io = CommitsMeanwhile(memory)
    io.commit = lambda: place.__setitem__("MANIFEST", place.pop("MANIFEST.part"))
    clock = FakeClock()
    with CheckpointStore("/run", io=io, clock=clock, grace_seconds=0.0) as store:
        memory.tree.files[memory.tree.directories[memory.tree.directories[0]["writers"]]["00000001.json"]][
            :
        ] = b""
        store.claim()
        [found] = committed(store)
        assert verify(store, found).is_whole


def test_a_node_makes_room_of_what_earlier_attempts_began(tmp_path: Path) -> None:
    node = node_store(tmp_path, io=SmallDisk(tmp_path, ROOM), makes_room=True)
    left = [str(draft(step, writer_epoch=1).name) for step in (5, 6)]
    for name in left:
        node_store(tmp_path).write(name, image_of(1, values=1 << 20))
    new = str(draft(7, writer_epoch=2).name)
    node.write(new, image_of(1))
    assert node.leftovers() == [new]
