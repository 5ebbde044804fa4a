"""After a trainer died: what only memory or the node's disk holds becomes a lasting checkpoint."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tier_samples import content, flip, save

from holdfast.checkpoints.find import committed
from holdfast.errors import Fenced, RunInUse, SetupError
from holdfast.format.manifest import parse_manifest
from holdfast.stores.locations import node_store
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_image import MemoryImage
from holdfast.testing.store_contract import newest_valid
from holdfast.tiers.ladder import Ladder
from holdfast.tiers.memory import MemoryTier
from holdfast.tiers.memory_folder import memory_folders
from holdfast.tiers.node_places import open_node_store
from holdfast.tiers.opening import readable_tiers
from holdfast.tiers.scavenge import scavenge
from holdfast.tiers.tier_list import remember_tiers
from holdfast.tiers.words import parse_tiers

# A trainer that saved step 1 to its folder, 2 and 3 to memory only, and then waits to be killed.
TRAINER = """
import sys
sys.path.insert(0, {samples!r})
from tier_samples import copy_to, save
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.memory import MemoryTier
from holdfast.tiers.tier_list import remember_tiers
from holdfast.tiers.words import parse_tiers
store = CheckpointStore({run!r})
epoch = store.claim()
remember_tiers({run!r}, parse_tiers(["memory", "run"]))
memory = MemoryTier(store.uuid, root={shm!r}, run={run!r})
memory.claim()
copy_to(store, memory, str(save(memory, 1, writer_epoch=epoch).name))
for step in (2, 3):
    save(memory, step, writer_epoch=epoch)
print("saved", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def trainer(tmp_path: Path, shm: str) -> Iterator[subprocess.Popen[str]]:
    code = TRAINER.format(samples=str(Path(__file__).parent), run=str(tmp_path / "run"), shm=shm)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "saved\n"
        yield process
        process.kill()


def steps(run: Path) -> list[int]:
    return [found.step for found in committed(CheckpointStore(run))]


def test_never_while_the_trainer_lives(trainer: object, tmp_path: Path, shm: str) -> None:
    with pytest.raises(RunInUse):
        scavenge(tmp_path / "run", shm=shm)
    assert steps(tmp_path / "run") == [1]


def test_never_while_somebody_still_writes_the_memory_though_the_folder_is_free(
    tmp_path: Path, shm: str
) -> None:
    code = TRAINER.format(samples=str(Path(__file__).parent), run=str(tmp_path / "run"), shm=shm)
    code = code.replace('print("saved"', 'store.release()\nprint("saved"')
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "saved\n"
        with pytest.raises(RunInUse, match="is being written by"):
            scavenge(tmp_path / "run", shm=shm)
        process.kill()
    assert steps(tmp_path / "run") == [1]


def test_what_only_memory_had_is_committed_under_its_own_name(
    trainer: subprocess.Popen[str], tmp_path: Path, shm: str
) -> None:
    trainer.kill()
    trainer.wait()
    run = tmp_path / "run"
    [folder] = memory_folders(shm, wall=0.0)
    in_memory = MemoryTier(folder.uuid, root=shm)
    before = {name: in_memory.manifest(name) for name in in_memory.names()}
    done = scavenge(run, shm=shm)
    assert [name in before for name in done.saved] == [True, True]
    assert (done.tier, done.failed) == ("run", ())
    assert steps(run) == [3, 2, 1]
    store = CheckpointStore(run)
    assert {name: store.manifest(name) for name in before} == before
    loaded = newest_valid(store)
    assert loaded is not None
    assert loaded.files["model.bin"] == content(3, "model.bin", 5000)
    assert scavenge(run, shm=shm).saved == (), "nothing is left to do"


def test_a_damaged_newest_one_is_said_and_the_one_before_is_saved(
    trainer: subprocess.Popen[str], tmp_path: Path, shm: str
) -> None:
    trainer.kill()
    trainer.wait()
    [folder] = memory_folders(shm, wall=0.0)
    tier = MemoryTier(folder.uuid, root=shm)
    slot = next(slot for slot in tier.slots if "s000000000003" in str(slot.sealed))
    flip(Path(slot.path, "model.bin"), 9)
    done = scavenge(tmp_path / "run", shm=shm)
    assert len(done.saved) == 1
    assert "digest" in done.failed[0][1]
    assert steps(tmp_path / "run") == [2, 1]


def test_the_disk_of_a_node_is_scavenged_into_the_first_lasting_tier(tmp_path: Path, shm: str) -> None:
    run, node, lasting = tmp_path / "run", tmp_path / "nvme", tmp_path / "lustre"
    with CheckpointStore(run) as home:
        epoch = home.claim()
        remember_tiers(run, parse_tiers([str(node), "single", str(lasting), "run"]))
        save(node_store(node, uuid=home.uuid), 5, writer_epoch=epoch)
    done = scavenge(run, shm=shm)
    assert (done.tier, len(done.saved)) == (str(lasting), 1)
    assert steps(lasting) == [5]
    assert steps(run) == []
    assert newest_valid(Ladder(readable_tiers(run, shm=shm))) is not None


def test_a_trainer_that_only_seemed_dead_cannot_commit_any_more(tmp_path: Path, shm: str) -> None:
    store = CheckpointStore(tmp_path / "run")
    store.claim()
    other = CheckpointStore(tmp_path / "run")
    other.claim(take_over=True)
    other.release()
    with pytest.raises(Fenced):
        save(store, 1)
    store.release()


def test_a_tier_of_another_run_is_refused(tmp_path: Path, shm: str) -> None:
    with CheckpointStore(tmp_path / "other") as other:
        other.claim()
    with CheckpointStore(tmp_path / "run") as home:
        home.claim()
        remember_tiers(tmp_path / "run", parse_tiers([str(tmp_path / "other"), "run"]))
    with pytest.raises(SetupError, match="belongs to another run"):
        readable_tiers(tmp_path / "run", shm=shm)


def test_what_the_nodes_of_several_ranks_left_here_is_found_and_committed(tmp_path: Path, shm: str) -> None:
    run = tmp_path / "run"
    with CheckpointStore(run) as home:
        epoch = home.claim()
    tiers = parse_tiers([str(tmp_path / "local"), "partner", "run every 10"])
    remember_tiers(run, tiers)
    whole = node_store(tmp_path / "whole", uuid=CheckpointStore(run).uuid)
    name = str(save(whole, 7, writer_epoch=epoch).name)
    files = sorted(whole.held(name))
    for number, node in enumerate(("node000", "node001")):
        store = open_node_store(tiers[0], whole.uuid, node)
        for record in parse_manifest(whole.manifest(name)).files:
            # Each node has a part; together they have it all.
            if files.index(record.name) % 2 == number:
                data = (tmp_path / "whole" / "ckpt" / name / record.name).read_bytes()
                store.write(name, MemoryImage(record.name, data), expect=record)
        store.publish(name, whole.manifest(name))
    assert [tier.name for tier in readable_tiers(run, shm=shm) if " of node" in tier.name] == [
        f"{tmp_path / 'local'} of node000",
        f"{tmp_path / 'local'} of node001",
    ]
    assert scavenge(run, shm=shm).saved == (name,)
    assert newest_valid(CheckpointStore(run)) is not None
