"""Memory of runs that were killed: given back where nothing is lost by it, and only there."""

import dataclasses
import os
from pathlib import Path

from tier_samples import copy_to, directory, save

from holdfast.stores.owner import this_process
from holdfast.tiers.forgotten_memory import forgotten, give_back_what_lasts
from holdfast.tiers.memory import MemoryTier
from holdfast.tiers.memory_folder import write_owner

OTHER = "0a1b2c3d-0000-4000-8000-00000000000f"


def dead_run(tmp_path: Path, *, copied: bool) -> MemoryTier:
    """A run that was killed and left a checkpoint in memory."""
    home = directory(tmp_path / "home")
    memory = MemoryTier(home.uuid, root=str(tmp_path / "shm"), run=home.where)
    memory.claim()
    name = str(save(memory, 3).name)
    if copied:
        copy_to(home, memory, name)
    home.release()
    dead = dataclasses.replace(this_process(""), pid=2**22 + 1, start_ticks=1)
    write_owner(memory.where, dead, home.where)
    return memory


def test_what_lies_in_the_runs_own_folder_too_is_given_back_by_the_next_run(tmp_path: Path) -> None:
    memory = dead_run(tmp_path, copied=True)
    assert give_back_what_lasts(OTHER, str(tmp_path / "shm"), wall=0.0) == [memory.where]
    assert not os.path.exists(memory.where)


def test_what_exists_only_in_memory_stays(tmp_path: Path) -> None:
    memory = dead_run(tmp_path, copied=False)
    assert give_back_what_lasts(OTHER, str(tmp_path / "shm"), wall=0.0) == []
    assert len(memory.names()) == 1


def test_a_run_that_lives_or_cannot_be_judged_keeps_its_memory(tmp_path: Path) -> None:
    memory = dead_run(tmp_path, copied=True)
    home = str(tmp_path / "home")
    for owner in (this_process(""), dataclasses.replace(this_process(""), boot_id="elsewhere")):
        write_owner(memory.where, owner, home)
        assert give_back_what_lasts(OTHER, str(tmp_path / "shm"), wall=0.0) == []


def test_what_the_ranks_of_a_node_left_in_memory_is_found(tmp_path: Path) -> None:
    place = tmp_path / "node-caches" / OTHER / "node000"
    place.mkdir(parents=True)
    (place / "image").write_bytes(bytes(8192))
    now = place.stat().st_mtime
    assert forgotten(str(tmp_path), wall=now + 60) == []
    [left] = forgotten(str(tmp_path), wall=now + 7200)
    assert (left.path, left.bytes) == (str(place.parent), 8192)
