"""The memory tier keeps the store's contract, and one slot is always whole."""

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tier_samples import CHUNK, UUID, content, draft, flip, save, shm_root, sources

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.write import write_checkpoint
from holdfast.errors import CorruptCheckpoint, Fenced, InternalError, RunInUse, StoreDenied, StoreFull
from holdfast.stores.base import Store
from holdfast.stores.owner import this_process
from holdfast.testing.store_contract import StoreContract, newest_valid
from holdfast.tiers.memory import MemoryTier
from holdfast.tiers.memory_folder import memory_folders, remove_folder, stale_folders, write_owner
from holdfast.tiers.memory_slot import SharedMemory


class TestMemoryTier(StoreContract):
    @pytest.fixture(autouse=True)
    def _root(self, shm: str) -> None:
        self.root = shm

    def make_store(self, tmp_path: Path) -> Store:
        # Four slots: the contract keeps four checkpoints at once.
        tier = MemoryTier(UUID, root=self.root, slots=4)
        tier.claim()
        return tier


class Staged:
    """An image in a slot's own memory, as staging has it."""

    concurrent = True

    def __init__(self, name: str, size: int, memory: SharedMemory) -> None:
        self.name, self.size, self.memory = name, size, memory

    def view(self, start: int, stop: int) -> memoryview:
        return self.memory.view[start:stop]


def stage(tier: MemoryTier, slot: int, step: int, size: int = 3 * 4096 + 5) -> list[Staged]:
    tier.reopen(slot)
    memory = tier.allocate(slot, "model.bin", size)
    memory.view[:size] = content(step, "model.bin", size)
    return [Staged("model.bin", size, memory)]


def newest_step(tier: MemoryTier) -> int:
    loaded = newest_valid(tier)
    assert loaded is not None
    assert loaded.files["model.bin"] == content(
        loaded.manifest.step, "model.bin", len(loaded.files["model.bin"])
    )
    return loaded.manifest.step


def test_an_image_staged_here_is_not_copied(memory: MemoryTier) -> None:
    size = CHUNK + 4097
    [image] = stage(memory, 0, 7, size)
    before = os.stat(os.path.join(memory.slots[0].path, "model.bin")).st_ino
    write_checkpoint(memory, draft(7), [image])
    assert newest_step(memory) == 7
    assert os.stat(os.path.join(memory.slots[0].path, "model.bin")).st_ino == before
    assert memory.held_bytes < size + 4 * 4096, "one copy, and nothing else of that size"


def test_staging_again_reuses_the_memory_and_takes_the_seal_first(memory: MemoryTier) -> None:
    [first] = stage(memory, 0, 1)
    write_checkpoint(memory, draft(1), [first])
    [second] = stage(memory, 0, 2)
    assert second.memory is first.memory
    assert memory.names() == []
    write_checkpoint(memory, draft(2), [second])
    assert newest_step(memory) == 2


def test_a_slot_that_is_still_sealed_is_never_vouched_for_again(memory: MemoryTier) -> None:
    [image] = stage(memory, 0, 1)
    write_checkpoint(memory, draft(1), [image])
    with pytest.raises(InternalError, match="not open"):
        write_checkpoint(memory, draft(2), [image])
    assert newest_step(memory) == 1


def test_the_next_slot_is_never_the_newest_nor_one_that_is_spared(memory: MemoryTier) -> None:
    assert memory.next_slot() == 0
    first = write_checkpoint(memory, draft(1), stage(memory, 0, 1))
    assert memory.next_slot() == 1
    write_checkpoint(memory, draft(2), stage(memory, 1, 2))
    assert memory.next_slot() == 0
    assert memory.next_slot(among=[1]) is None
    assert memory.next_slot(spare=[str(first.name)]) is None
    stage(memory, 0, 3)  # torn: staged, never sealed
    assert memory.next_slot() == 0


def test_a_changed_layout_makes_new_files_and_drops_old_ones(memory: MemoryTier) -> None:
    [old] = stage(memory, 0, 1, 5000)
    write_checkpoint(memory, draft(1), [old])
    memory.reopen(0)
    memory.allocate(0, "another.bin", 100)
    [image] = stage(memory, 0, 2, 50000)
    write_checkpoint(memory, draft(2), [image])
    assert newest_step(memory) == 2
    assert memory.slots[0].files == {"model.bin"}
    assert bytes(old.memory.view[:5]) == content(1, "model.bin", 5000)[:5], "a mapped image stays as it is"


def test_another_process_reads_what_a_dead_one_left(memory: MemoryTier, shm: str) -> None:
    save(memory, 1)
    save(memory, 2)
    heir = MemoryTier(UUID, root=shm)
    assert [found.step for found in committed(heir)] == [2, 1]
    heir.claim(take_over=True)
    assert heir.next_slot() == next(n for n, slot in enumerate(heir.slots) if "s000000000001" in slot.sealed)
    with pytest.raises(Fenced):
        save(memory, 3)
    save(heir, 4)
    assert [found.step for found in committed(heir)] == [4, 2]


@pytest.mark.parametrize("damage", ["bytes", "short", "gone", "manifest", "torn manifest"])
def test_a_damaged_slot_is_passed_over(memory: MemoryTier, damage: str) -> None:
    save(memory, 1)
    save(memory, 2)
    slot = next(slot for slot in memory.slots if "s000000000002" in slot.sealed)
    image, record = Path(slot.path, "model.bin"), Path(slot.path, f"MANIFEST.{slot.sealed}")
    if damage == "bytes":
        flip(image, 4999)
    elif damage == "short":
        os.truncate(image, 4096)
    elif damage == "gone":
        image.unlink()
    elif damage == "manifest":
        flip(record, 20)
    else:
        os.truncate(record, 100)
    rejected: list[int] = []
    loaded = newest_valid(memory, reject=lambda found, why: rejected.append(found.step))
    assert loaded is not None
    assert (loaded.manifest.step, rejected) == (1, [2])


def test_memory_that_is_not_there_is_refused_before_it_is_touched(memory: MemoryTier) -> None:
    free = os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize
    with pytest.raises(StoreFull):
        memory.allocate(0, "model.bin", free + (1 << 30))
    assert memory.held_bytes == 0
    assert "shared memory" in str(memory.lacks_room(free, available_bytes=4 * free))
    assert "of memory" in str(memory.lacks_room(1 << 20, available_bytes=1 << 20))
    assert memory.lacks_room(1 << 20, available_bytes=1 << 30) is None


def test_what_the_tier_holds_counts_as_room(memory: MemoryTier) -> None:
    save(memory, 1, (1 << 20, 10))
    assert memory.lacks_room(1 << 20, slots=1, available_bytes=0) is None


def test_nobody_else_can_read_it(memory: MemoryTier, shm: str) -> None:
    save(memory, 1)
    for parent, folders, files in os.walk(shm):
        for name in [*folders, *files]:
            assert not stat.S_IMODE(os.lstat(os.path.join(parent, name)).st_mode) & 0o077


def test_a_folder_that_others_can_reach_is_refused() -> None:
    root = shm_root()
    os.mkdir(root)
    try:
        os.chmod(root, 0o777)
        with pytest.raises(StoreDenied):
            MemoryTier(UUID, root=root).claim()
    finally:
        os.rmdir(root)


def test_a_living_writer_is_not_displaced(memory: MemoryTier, shm: str) -> None:
    code = (
        f"from holdfast.tiers.memory import MemoryTier\nMemoryTier({UUID!r}, root={shm!r}).claim()\n"
        "print('claimed', flush=True)\ninput()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as other:
        assert other.stderr is not None
        assert "RunInUse" in other.stderr.read().decode()
    with subprocess.Popen(
        [sys.executable, "-c", code.replace("claim()", "claim(take_over=True)")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"claimed\n"
        with pytest.raises(RunInUse):
            memory.claim()
        other.communicate(b"\n", timeout=10)
    memory.claim()


def test_only_old_folders_of_dead_runs_are_stale(memory: MemoryTier, shm: str) -> None:
    save(memory, 1)
    now = os.stat(memory.where).st_mtime + 1000
    [folder] = memory_folders(shm, wall=now)
    assert (folder.uuid, folder.alive) == (UUID, True)
    assert folder.bytes >= 5000
    assert stale_folders(shm, wall=now + 1e9) == [], "its owner lives"
    write_owner(memory.where, replace(this_process(""), start_ticks=1), "")
    assert stale_folders(shm, wall=now, older_than=5000) == []
    [stale] = stale_folders(shm, wall=now + 6000, older_than=5000)
    remove_folder(stale)
    assert memory_folders(shm, wall=now) == []


def test_a_run_that_ended_gives_its_memory_back(memory: MemoryTier) -> None:
    save(memory, 1)
    memory.discard()
    assert memory.names() == []
    assert memory.held_bytes == 0


def test_a_corrupt_manifest_says_where(memory: MemoryTier) -> None:
    name = str(save(memory, 1).name)
    slot = next(slot for slot in memory.slots if slot.sealed)
    flip(Path(slot.path, f"MANIFEST.{name}"), 3)
    with pytest.raises(CorruptCheckpoint, match=UUID):
        memory.manifest(name)


def test_sources_of_any_kind_are_copied_in(memory: MemoryTier) -> None:
    streamed = sources(5)
    for source in streamed:
        source.concurrent = False  # type: ignore[misc]
    write_checkpoint(memory, draft(5), streamed)
    loaded = newest_valid(memory)
    assert loaded is not None
    assert {name: bytes(view) for name, view in loaded.files.items()} == {
        "model.bin": content(5, "model.bin", 5000),
        "state.bin": content(5, "state.bin", 300),
    }
