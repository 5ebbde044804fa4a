"""A program's files as generations: kept whole or not at all, put back when verified, nothing deleted."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.checkpoints.file_image import FileImage
from holdfast.checkpoints.retain import Retention
from holdfast.clock import SystemClock
from holdfast.errors import CorruptCheckpoint, NoValidCheckpoint, SaveError, TornSnapshot
from holdfast.events import CheckpointRejected, Event
from holdfast.programs.generations import SET_ASIDE, Generations
from holdfast.stores.place import CKPT
from holdfast.stores.store import CheckpointStore


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CheckpointStore]:
    with CheckpointStore(tmp_path / "run") as store:
        store.claim()
        yield store


@pytest.fixture
def generations(store: CheckpointStore, events: list[Event]) -> Generations:
    return Generations(store, SystemClock(), events.append, Retention(latest=2))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def keep(generations: Generations, work: Path, **files: bytes) -> str:
    for name, data in files.items():
        (work / name).write_bytes(data)
    return str(generations.keep({name: work / name for name in files}, reason="test").name)


def damage(store: CheckpointStore, name: str) -> None:
    file = next((Path(store.where) / CKPT / name).glob("file-*"))
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)


def test_what_was_kept_comes_back_with_its_mode_and_time(generations: Generations, work: Path) -> None:
    big = os.urandom((16 << 20) + 4097)
    (work / "a").write_bytes(b"")
    keep(generations, work, a=b"one", b=big, empty=b"")
    os.chmod(work / "a", 0o640)
    keep(generations, work, a=b"one", b=big, empty=b"")
    before = (work / "a").stat()
    for name in ("a", "b", "empty"):
        (work / name).unlink()
    generation = generations.newest_good()
    assert generation is not None
    assert generations.put_back(generation, work, present=[]) == []
    assert (work / "a").read_bytes() == b"one"
    assert (work / "b").read_bytes() == big
    assert (work / "empty").read_bytes() == b""
    after = (work / "a").stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


def test_what_was_damaged_after_it_was_chosen_is_not_put_back(
    generations: Generations, store: CheckpointStore, work: Path
) -> None:
    name = keep(generations, work, a=b"one")
    (work / "a").unlink()
    generation = generations.newest_good()
    assert generation is not None
    damage(store, name)
    with pytest.raises(CorruptCheckpoint, match="does not match its digest"):
        generations.put_back(generation, work, present=[])
    assert not (work / "a").exists()


def test_two_generations_are_kept(generations: Generations, store: CheckpointStore, work: Path) -> None:
    made = [keep(generations, work, a=bytes([i])) for i in range(4)]
    assert sorted(store.names()) == made[-2:]


def test_a_damaged_newest_falls_back_to_the_older_and_says_so(
    generations: Generations, store: CheckpointStore, work: Path, events: list[Event]
) -> None:
    older = keep(generations, work, a=b"older")
    newest = keep(generations, work, a=b"newer")
    damage(store, newest)
    chosen = generations.newest_good()
    assert chosen is not None
    assert chosen.name == older
    assert [event.name for event in events if isinstance(event, CheckpointRejected)] == [newest]


def test_when_all_are_damaged_it_is_an_error_and_no_fresh_start(
    generations: Generations, store: CheckpointStore, work: Path
) -> None:
    for name in (keep(generations, work, a=b"1"), keep(generations, work, a=b"2")):
        damage(store, name)
    with pytest.raises(NoValidCheckpoint, match="2 generations and none is whole"):
        generations.newest_good()


def test_a_generation_the_program_cannot_use_is_the_last_choice(generations: Generations, work: Path) -> None:
    older = keep(generations, work, a=b"1")
    newest = keep(generations, work, a=b"2")
    chosen = generations.newest_good({newest})
    assert chosen is not None
    assert chosen.name == older
    chosen = generations.newest_good({newest, older})
    assert chosen is not None
    assert chosen.name == newest


def test_what_must_make_room_is_set_aside_and_never_deleted(generations: Generations, work: Path) -> None:
    keep(generations, work, a=b"good")
    generation = generations.newest_good()
    assert generation is not None
    for text in (b"torn", b"torn again"):
        (work / "a").write_bytes(text)
        (work / "later").write_bytes(text)
        generations.put_back(generation, work, present=["a", "later"])
    assert (work / "a").read_bytes() == b"good"
    assert not (work / "later").exists()
    assert (work / SET_ASIDE / "1" / "a").read_bytes() == b"torn"
    assert (work / SET_ASIDE / "2" / "a").read_bytes() == b"torn again"
    assert (work / SET_ASIDE / "1" / "later").read_bytes() == b"torn"


def test_a_file_that_changes_while_it_is_read_is_not_committed(
    generations: Generations, store: CheckpointStore, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "a").write_bytes(bytes(40 << 20))
    view = FileImage.view

    def view_while_it_changes(self: FileImage, start: int, stop: int) -> memoryview:
        with open(work / "a", "r+b") as file:
            file.write(b"changed")
        return view(self, start, stop)

    monkeypatch.setattr(FileImage, "view", view_while_it_changes)
    with pytest.raises(TornSnapshot, match="changed while it was read"):
        generations.keep({"a": work / "a"}, reason="test")
    assert store.names() == []


def test_a_file_replaced_while_it_is_read_is_kept_as_it_was(generations: Generations, work: Path) -> None:
    (work / "a").write_bytes(b"old")
    image = FileImage("file-0000", work / "a")
    (work / "new").write_bytes(b"new!")
    os.replace(work / "new", work / "a")
    assert bytes(image.view(0, 3)) == b"old"
    image.close()


def test_links_are_not_followed(generations: Generations, work: Path) -> None:
    (work / "secret").write_bytes(b"x")
    (work / "a").symlink_to(work / "secret")
    with pytest.raises(SaveError, match="cannot read"):
        generations.keep({"a": work / "a"}, reason="test")


def test_a_manifest_cannot_write_outside_the_working_folder(generations: Generations, work: Path) -> None:
    (work / "a").write_bytes(b"evil")
    generations.keep({"../escaped": work / "a"}, reason="hostile")
    with pytest.raises(NoValidCheckpoint):
        generations.newest_good()
    assert not (work.parent / "escaped").exists()
