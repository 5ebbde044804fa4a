"""One checkpoint, all or nothing: written, found, read, verified."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.checkpoints.find import Found, committed, look
from holdfast.checkpoints.read import allocate_pages, read_files
from holdfast.checkpoints.verify import verify
from holdfast.checkpoints.write import CheckpointDraft, write_checkpoint
from holdfast.errors import CorruptCheckpoint, InternalError, RestoreError, SaveError
from holdfast.format.manifest import Parent
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_image import MemoryImage, image_of
from holdfast.testing.memory_io import MemoryIO
from holdfast.testing.store_contract import draft, newest_valid, save

CHUNK = 16 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CheckpointStore]:
    with CheckpointStore(tmp_path / "run") as store:
        store.claim()
        yield store


def flip(store: CheckpointStore, found: Found, file: str, at: int) -> None:
    path = Path(store.where, "ckpt", str(found.name), file)
    with open(path, "r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ 1]))


def test_everything_in_the_draft_is_in_the_manifest(store: CheckpointStore) -> None:
    first = save(store, 1)
    whole = CheckpointDraft(
        writer_epoch=1,
        step=2,
        created="then",
        reason="because",
        parent=first.as_parent,
        progress={"epoch": 3},
        values={"lr": ["float", "ff"]},
        contains={"model": {"tensors": 2}},
        environment={"host": "x"},
        metrics={"loss": 0.5},
        tags=("epoch-end",),
        notes="note",
        keep="paper",
        roles={image_of(2).name: "model"},
    )
    done = write_checkpoint(store, whole, [image_of(2)])
    found = committed(store)[0]
    manifest = found.manifest
    assert manifest is not None
    assert manifest == done.manifest
    for field in (
        "progress",
        "values",
        "contains",
        "environment",
        "metrics",
        "tags",
        "notes",
        "keep",
        "reason",
    ):
        assert getattr(manifest, field) == getattr(whole, field)
    assert manifest.store == store.uuid
    assert manifest.files[0].role == "model"
    assert manifest.parent == Parent(str(first.name), first.sha256)
    assert found.as_parent == done.as_parent
    # The chain can be followed: the parent's seal is the one its own manifest carries.
    assert look(store, first.name).sha256 == first.sha256


def test_a_value_that_cannot_be_stored_costs_no_writing(store: CheckpointStore) -> None:
    with pytest.raises(SaveError, match="progress"):
        write_checkpoint(store, draft(1, progress={"x": object()}), [image_of(1)])
    assert list(Path(store.where, "ckpt").iterdir()) == []


def test_two_files_of_one_name_are_our_bug(store: CheckpointStore) -> None:
    with pytest.raises(InternalError):
        write_checkpoint(store, draft(1), [image_of(1), image_of(2)])


def test_a_source_that_fails_leaves_no_trace(store: CheckpointStore) -> None:
    class Breaks(MemoryImage):
        def view(self, start: int, stop: int) -> memoryview:
            raise MemoryError("the copy was lost")

    with pytest.raises(MemoryError):
        write_checkpoint(store, draft(1), [image_of(1), Breaks("b.bin", b"x")])
    assert list(Path(store.where, "ckpt").iterdir()) == []


def test_a_checkpoint_without_files_is_a_checkpoint(store: CheckpointStore) -> None:
    write_checkpoint(store, draft(1), [])
    loaded = newest_valid(store)
    assert loaded is not None
    assert loaded.files == {}
    assert verify(store, loaded.found).is_whole


def test_only_the_wanted_files_are_read_and_all_must_exist(store: CheckpointStore) -> None:
    write_checkpoint(store, draft(1), [MemoryImage("a.bin", b"aa"), MemoryImage("b.bin", b"bb")])
    [found] = committed(store)
    assert read_files(store, found, wanted=["b.bin"]) == {"b.bin": b"bb"}
    assert read_files(store, found, wanted=[]) == {}
    with pytest.raises(RestoreError, match=r"c\.bin"):
        read_files(store, found, wanted=["c.bin"])


def test_the_callers_memory_is_filled_in_place(store: CheckpointStore) -> None:
    save(store, 1)
    given: list[memoryview] = []

    def allocate(size: int) -> memoryview:
        given.append(allocate_pages(size))
        return given[-1]

    files = read_files(store, committed(store)[0], allocate=allocate)
    assert files[image_of(1).name] is given[0]


def test_memory_that_is_not_aligned_is_filled_all_the_same(store: CheckpointStore) -> None:
    save(store, 1)
    files = read_files(store, committed(store)[0], allocate=lambda size: memoryview(bytearray(size + 1))[1:])
    assert files[image_of(1).name] == image_of(1).view(0, image_of(1).size)


def test_damage_is_named_by_file_chunk_and_tensor(store: CheckpointStore) -> None:
    write_checkpoint(store, draft(1), [image_of(1, values=9 << 20)])
    [found] = committed(store)
    flip(store, found, image_of(1).name, 2 * CHUNK + 77)
    with pytest.raises(CorruptCheckpoint) as refused:
        read_files(store, found)
    text = str(refused.value)
    assert image_of(1).name in text
    assert "chunk 2" in text
    assert "'layer.weight'" in text
    verdict = verify(store, found)
    assert not verdict.is_whole
    assert "chunk 2" in verdict.problems[0]
    assert "'layer.weight'" in verdict.problems[0]
    assert verify(store, found, deep=False).is_whole, "sizes alone cannot tell"


def test_verification_counts_every_byte_and_reports_progress(store: CheckpointStore) -> None:
    images = [image_of(1, name="a.safetensors", values=5 << 20), MemoryImage("b.bin", bytes(5000))]
    write_checkpoint(store, draft(1), images)
    [found] = committed(store)
    heard: list[tuple[int, int]] = []
    verdict = verify(store, found, progress=lambda done, total: heard.append((done, total)))
    total = sum(image.size for image in images)
    assert verdict.is_whole
    assert verdict.bytes_checked == total
    assert [done for done, _ in heard] == sorted({done for done, _ in heard})
    assert heard[-1] == (total, total)


def test_every_problem_is_listed_not_only_the_first(store: CheckpointStore) -> None:
    write_checkpoint(store, draft(1), [MemoryImage(f"{n}.bin", bytes(9000)) for n in "abc"])
    [found] = committed(store)
    place = Path(store.where, "ckpt", str(found.name))
    (place / "a.bin").unlink()
    flip(store, found, "b.bin", 8999)
    (place / "c.bin").write_bytes(b"short")
    problems = verify(store, found).problems
    assert len(problems) == 3
    assert all(f"{name}.bin" in text for name, text in zip("abc", problems, strict=True))
    assert len(verify(store, found, deep=False).problems) == 2


def test_an_image_whose_header_does_not_tile_is_not_whole(store: CheckpointStore) -> None:
    """Its digests are right: it was written so. Nobody could view it, so verification must say it."""
    broken = bytearray(image_of(1).view(0, image_of(1).size)) + b"trailing"
    write_checkpoint(store, draft(1), [MemoryImage("a.safetensors", bytes(broken))])
    write_checkpoint(store, draft(2), [MemoryImage("a.safetensors", b"tiny")])
    for found in committed(store):
        [problem] = verify(store, found).problems
        assert "image" in problem


def test_an_unreadable_checkpoint_is_found_with_its_problem() -> None:
    io = MemoryIO()
    store = CheckpointStore("/run", io=io)
    name = str(save(store, 1, writer_epoch=store.claim()).name)
    place = io.tree.directories[io.tree.directories[io.tree.directories[0]["ckpt"]][name]]
    for record in ("MANIFEST", "MANIFEST.2"):
        io.tree.files[place[record]][0] ^= 1
    [found] = committed(store)
    assert found.manifest is None
    assert found.as_parent is None
    assert "sha256" in str(found.problem)
    assert not verify(store, found).is_whole
    with pytest.raises(CorruptCheckpoint, match="unreadable"):
        read_files(store, found)


def test_restores_race_a_pruner_and_always_get_a_whole_checkpoint(tmp_path: Path) -> None:
    writer = CheckpointStore(tmp_path / "run")
    epoch = writer.claim()
    last = [str(save(writer, 0, writer_epoch=epoch).name)]
    stop = threading.Event()
    failures: list[BaseException] = []

    def write_and_retire() -> None:
        try:
            for step in range(1, 60):
                last.append(str(save(writer, step, writer_epoch=epoch).name))
                writer.retire(last.pop(0))
        except BaseException as error:  # noqa: BLE001  shown by the assertion below
            failures.append(error)
        finally:
            stop.set()

    thread = threading.Thread(target=write_and_retire)
    thread.start()
    reader = CheckpointStore(tmp_path / "run")
    restored = 0
    while not stop.is_set():
        loaded = newest_valid(reader)
        assert loaded is not None
        image = image_of(loaded.found.step)
        assert loaded.files[image.name] == image.view(0, image.size)
        restored += 1
    thread.join()
    writer.release()
    assert failures == []
    assert restored > 0


def test_a_listing_that_a_pruner_outran_is_read_anew() -> None:
    """Between listing and reading, all that was listed is pruned; what replaced it must be found."""
    io = MemoryIO()
    writer = CheckpointStore("/run", io=io)
    epoch = writer.claim()
    old = str(save(writer, 1, writer_epoch=epoch).name)

    class Outrun(CheckpointStore):
        def names(self) -> list[str]:
            listed = super().names()
            if old in listed:
                save(writer, 2, writer_epoch=epoch)
                writer.retire(old)
            return listed

    loaded = newest_valid(Outrun("/run", io=io))
    assert loaded is not None
    assert loaded.found.step == 2


def test_drafts_have_names_of_their_own() -> None:
    names = {draft(1).name for _ in range(200)}
    assert len(names) == 200
    assert replace(draft(1), nonce="00000001").name.nonce == "00000001"
