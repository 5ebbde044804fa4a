"""A colleague with write access to the directory: links, pipes, lying manifests, foreign files.

Reading never leaves the store, never blocks and never follows; pruning never touches what is not ours.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.read import read_files
from holdfast.checkpoints.retain import Ledger, Retention, prune
from holdfast.errors import CorruptCheckpoint, HoldfastError, StoreDenied, StoreError
from holdfast.format.manifest import parse_manifest
from holdfast.format.sealed import canonical_json, unseal
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_image import image_of
from holdfast.testing.store_contract import draft, newest_valid, save

IMAGE = image_of(1).name


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CheckpointStore]:
    with CheckpointStore(tmp_path / "run") as store:
        epoch = store.claim()
        for step in (1, 2):
            save(store, step, writer_epoch=epoch)
        yield store


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "MANIFEST").write_text("precious")
    (outside / IMAGE).write_bytes(image_of(2).view(0, image_of(2).size))
    return outside


def place_of(store: CheckpointStore, step: int) -> Path:
    [found] = [one for one in committed(store) if one.step == step]
    return Path(store.where, "ckpt", str(found.name))


def restored_step(store: CheckpointStore) -> tuple[int, list[str]]:
    rejected: list[str] = []
    loaded = newest_valid(store, reject=lambda found, why: rejected.append(why))
    assert loaded is not None
    return loaded.found.step, rejected


@pytest.mark.parametrize("what", ["link", "pipe", "directory", "socket-like device"])
@pytest.mark.parametrize("where", [IMAGE, "MANIFEST and its copy"])
def test_what_is_no_regular_file_is_refused_at_once(
    store: CheckpointStore, canary: Path, what: str, where: str
) -> None:
    names = [IMAGE] if where == IMAGE else ["MANIFEST", "MANIFEST.2"]
    for name in names:
        victim = place_of(store, 2) / name if name == IMAGE else Path(place_of_raw(store, 2), name)
        victim.unlink()
        if what == "link":
            # The very bytes that were saved, but elsewhere: still not ours to read.
            victim.symlink_to(canary / IMAGE)
        elif what == "pipe":
            os.mkfifo(victim)
        elif what == "directory":
            victim.mkdir()
        else:
            victim.symlink_to("/dev/zero")
    step, rejected = restored_step(store)
    assert (step, len(rejected)) == (1, 1)


def place_of_raw(store: CheckpointStore, step: int) -> str:
    [name] = [n for n in os.listdir(os.path.join(store.where, "ckpt")) if f"-s{step:012d}-" in n]
    return os.path.join(store.where, "ckpt", name)


def test_a_linked_checkpoint_directory_is_neither_read_nor_pruned(
    store: CheckpointStore, canary: Path, tmp_path: Path
) -> None:
    name = "e00000001-s000000000000-0badcafe"
    Path(store.where, "ckpt", name).symlink_to(canary)
    assert name not in store.names()
    epoch = store.writer_epoch
    ledger = Ledger()
    for step in (3, 4, 5):
        ledger.committed.add(str(save(store, step, writer_epoch=epoch).name))
    prune(store, Retention(latest=2), ledger)
    assert (canary / "MANIFEST").read_text() == "precious"
    with pytest.raises(HoldfastError):
        store.retire(name)
    with pytest.raises(HoldfastError):
        store.abandon(name)
    assert (canary / "MANIFEST").read_text() == "precious"
    assert (canary / IMAGE).exists()


def test_foreign_entries_survive_a_prune(store: CheckpointStore, canary: Path) -> None:
    ckpt = Path(store.where, "ckpt")
    (ckpt / "notes.txt").write_text("mine")
    (ckpt / "best-model").mkdir()
    (ckpt / "best-model" / "MANIFEST").write_text("mine")
    inside = place_of(store, 1)
    (inside / "README.md").write_text("mine")
    (inside / "link.bin").symlink_to(canary / "MANIFEST")
    (inside / "subdirectory").mkdir()
    ledger = Ledger()
    for step in (3, 4):
        ledger.committed.add(str(save(store, step, writer_epoch=store.writer_epoch).name))
    result = prune(store, Retention(latest=2), ledger)
    assert result.failed == ()
    assert (ckpt / "notes.txt").read_text() == "mine"
    assert (ckpt / "best-model" / "MANIFEST").read_text() == "mine"
    # Ours are gone, theirs are not, and the tombstone keeps the place from ever looking committed.
    assert sorted(os.listdir(inside)) == ["MANIFEST.dead", "README.md", "link.bin", "subdirectory"]
    assert (canary / "MANIFEST").read_text() == "precious"
    assert sorted(found.step for found in committed(store)) == [3, 4]


def test_a_checkpoint_of_another_store_is_read_but_never_pruned(
    store: CheckpointStore, tmp_path: Path
) -> None:
    other = CheckpointStore(tmp_path / "other")
    stranger = str(save(other, 1, writer_epoch=other.claim()).name)
    os.rename(Path(other.where, "ckpt", stranger), Path(store.where, "ckpt", stranger))
    ledger = Ledger()
    for step in (3, 4, 5):
        ledger.committed.add(str(save(store, step, writer_epoch=store.writer_epoch).name))
    result = prune(store, Retention(latest=2), ledger)
    assert stranger in store.names()
    assert dict(result.kept)[stranger] == "belongs to another store"
    other.release()


def reseal(place: Path, **changes: Any) -> None:
    """What an attacker can do: any content, correctly sealed."""
    record = unseal((place / "MANIFEST").read_bytes())
    record.update(changes)
    line = canonical_json(record) + b"\n"
    data = line + b"sha256:" + hashlib.sha256(line).hexdigest().encode() + b"\n"
    for copy in ("MANIFEST", "MANIFEST.2"):
        (place / copy).write_bytes(data)


def file_entry(**changes: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": "x.bin", "size": 4096, "role": "", "algorithm": "xxh3-128", "chunk_bytes": 16 << 20,
        "digests": ["0" * 32],
    }  # fmt: skip
    return {**entry, **changes}


HOSTILE: dict[str, dict[str, Any]] = {
    "a name that climbs": {"files": [file_entry(name="../../../outside/MANIFEST")]},
    "an absolute name": {"files": [file_entry(name="/etc/passwd")]},
    "a name with a slash": {"files": [file_entry(name="a/b")]},
    "the parent": {"files": [file_entry(name="..")]},
    "a hidden name": {"files": [file_entry(name=".ssh")]},
    "a name with a newline": {"files": [file_entry(name="x.bin\n")]},
    "a name with a NUL": {"files": [file_entry(name="x\0.bin")]},
    "the manifest itself": {"files": [file_entry(name="MANIFEST")]},
    "an endless name": {"files": [file_entry(name="x" * 129)]},
    "one name twice": {"files": [file_entry(), file_entry()]},
    "a negative size": {"files": [file_entry(size=-1, digests=[])]},
    "an absurd size": {"files": [file_entry(size=1 << 60)]},
    "a size that is true": {"files": [file_entry(size=True)]},
    "a fractional size": {"files": [file_entry(size=1.5)]},
    "no digests": {"files": [file_entry(digests=[])]},
    "digests that are not hex": {"files": [file_entry(digests=["g" * 32])]},
    "another algorithm": {"files": [file_entry(algorithm="none")]},
    "chunks of nothing": {"files": [file_entry(chunk_bytes=0)]},
    "chunks of a terabyte": {"files": [file_entry(chunk_bytes=1 << 40)]},
    "an extra field in a file": {"files": [file_entry(mode=0o777)]},
    "files that are no list": {"files": {"x.bin": 1}},
    "a file that is no object": {"files": ["x.bin"]},
    "an unknown field": {"hook": "os.system"},
    "another format": {"format": 0},
    "a format that is true": {"format": True},
    "a parent elsewhere": {"parent": {"name": "../x", "sha256": "0" * 64}},
    "a parent without a seal": {"parent": {"name": "e00000001-s000000000001-00000001"}},
    "a parent with half a seal": {"parent": {"name": "e00000001-s000000000001-00000001", "sha256": "0"}},
    "a step below zero": {"step": -1},
    "a step beyond names": {"step": 10**12},
    "an epoch that is text": {"writer_epoch": "1"},
    "a nonce that is a path": {"nonce": "../../.."},
    "a store that is no uuid": {"store": "x"},
    "progress that is a list": {"progress": []},
    "a metric that is text": {"metrics": {"loss": "high"}},
    "a metric that is true": {"metrics": {"loss": True}},
    "tags that are numbers": {"tags": [1]},
    "keep that is a number": {"keep": 1},
    "notes that are a list": {"notes": []},
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_manifest_is_refused_though_well_sealed(
    store: CheckpointStore, canary: Path, how: str
) -> None:
    place = place_of(store, 2)
    reseal(place, **HOSTILE[how])
    with pytest.raises(CorruptCheckpoint):
        parse_manifest((place / "MANIFEST").read_bytes())
    step, rejected = restored_step(store)
    assert (step, len(rejected)) == (1, 1)


def test_the_harness_reseals_correctly(store: CheckpointStore) -> None:
    """Else every hostile manifest above would be refused for its seal, not for its content."""
    place = place_of(store, 2)
    reseal(place, notes="harmless")
    assert restored_step(store) == (2, [])


def test_a_manifest_too_large_is_refused_before_it_is_read(store: CheckpointStore) -> None:
    place = place_of(store, 2)
    for copy in ("MANIFEST", "MANIFEST.2"):
        os.truncate(place / copy, (256 << 20) + 1)
    step, rejected = restored_step(store)
    assert step == 1
    assert "more than" in rejected[0]


def test_a_manifest_nested_without_end_is_refused(store: CheckpointStore) -> None:
    place = place_of(store, 2)
    line = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    data = line + b"sha256:" + hashlib.sha256(line).hexdigest().encode() + b"\n"
    for copy in ("MANIFEST", "MANIFEST.2"):
        (place / copy).write_bytes(data)
    assert restored_step(store)[0] == 1


def test_declared_sizes_are_checked_before_memory_is_taken(store: CheckpointStore) -> None:
    place = place_of(store, 2)
    size = 1 << 45
    chunk = 1 << 30
    reseal(
        place,
        files=[file_entry(name=IMAGE, size=size, chunk_bytes=chunk, digests=["0" * 32] * (size // chunk))],
    )
    asked: list[int] = []

    def allocate(count: int) -> memoryview:
        asked.append(count)
        return memoryview(bytearray(count))

    with pytest.raises(CorruptCheckpoint, match="bytes, not"):
        read_files(store, committed(store)[0], allocate=allocate)
    assert asked == []


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077, 0o000])
def test_the_umask_is_honoured_and_nothing_else_imposed(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = CheckpointStore(tmp_path / "run")
        save(store, 1, writer_epoch=store.claim())
    finally:
        os.umask(before)
    for path in [Path(store.where), *Path(store.where).rglob("*")]:
        wanted = (0o777 if path.is_dir() else 0o666) & ~umask
        assert path.stat().st_mode & 0o777 == wanted, path
    store.release()


def test_a_link_planted_at_a_new_name_is_not_written_through(store: CheckpointStore, canary: Path) -> None:
    name = str(draft(9, writer_epoch=store.writer_epoch).name)
    store.begin(name, 1 << 20)
    Path(store.where, "ckpt", name, IMAGE).symlink_to(canary / "MANIFEST")
    with pytest.raises(StoreError):
        store.write(name, image_of(9))
    assert (canary / "MANIFEST").read_text() == "precious"


def test_a_linked_writers_directory_stops_the_claim(tmp_path: Path, canary: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    (root / "writers").symlink_to(canary)
    with pytest.raises(StoreError):
        CheckpointStore(root).claim()
    assert sorted(os.listdir(canary)) == ["MANIFEST", IMAGE]


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path, canary: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    (root / "LOCK").symlink_to(canary / "MANIFEST")
    with pytest.raises(StoreDenied):
        CheckpointStore(root).claim()


def test_json_tools_and_a_hash_tool_can_audit_a_manifest(store: CheckpointStore) -> None:
    line, seal, rest = (place_of(store, 2) / "MANIFEST").read_bytes().split(b"\n")
    assert rest == b""
    assert seal == b"sha256:" + hashlib.sha256(line + b"\n").hexdigest().encode()
    assert json.loads(line)["step"] == 2
