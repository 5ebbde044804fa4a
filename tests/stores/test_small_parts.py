"""The journal, leftovers, the pair of threads, and what a store does with odd sources."""

import threading
from pathlib import Path

import pytest

from holdfast.errors import InternalError, StoreError, StoreUnavailable
from holdfast.events import Pruned, Warned
from holdfast.format.names import CheckpointName
from holdfast.stores.journal import Journal, read_events
from holdfast.stores.leftovers import Unfinished, Watch, is_abandoned
from holdfast.stores.side_by_side import side_by_side
from holdfast.stores.store import CheckpointStore
from holdfast.testing.fake_clock import FakeClock
from holdfast.testing.memory_image import MemoryImage, image_of
from holdfast.testing.memory_io import ROOT, MemoryIO
from holdfast.testing.store_contract import draft, save

# ---- the journal


def test_events_are_read_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(Warned(time=1.0, message="one"), Pruned(time=2.0, name="x", why="old"))
    journal.append(Warned(time=3.0, message="drei\n\x00ü"))
    assert read_events(tmp_path) == [
        Warned(time=1.0, message="one"),
        Pruned(time=2.0, name="x", why="old"),
        Warned(time=3.0, message="drei\n\x00ü"),
    ]


@pytest.mark.parametrize("torn", [b'{"event":"Warn', b"\xff\xfe", b"null", b'{"event":"FromTheFuture"}'])
def test_a_torn_or_unknown_line_costs_only_itself(tmp_path: Path, torn: bytes) -> None:
    Journal(tmp_path).append(Warned(time=1.0, message="before"))
    with open(tmp_path / "events.jsonl", "ab") as file:
        file.write(torn)
    Journal(tmp_path).append(Warned(time=2.0, message="after"))
    assert [event.time for event in read_events(tmp_path)] == [1.0, 2.0]


def test_a_journal_that_cannot_be_written_counts_and_goes_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "absent")
    journal.append(Warned(time=1.0, message="lost"), Warned(time=1.0, message="lost"))
    assert journal.dropped == 2
    (tmp_path / "absent").mkdir()
    journal.append(Warned(time=2.0, message="kept"))
    assert [event.time for event in read_events(tmp_path / "absent")] == [2.0]


def test_no_journal_is_no_events(tmp_path: Path) -> None:
    assert read_events(tmp_path / "absent") == []


def test_a_journal_that_cannot_be_read_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").mkdir()
    with pytest.raises(StoreError):
        read_events(tmp_path)


# ---- leftovers


def unfinished(epoch: int, *, dead: bool = False, alive: bool | None = None) -> Unfinished:
    return Unfinished(CheckpointName(epoch, 1, "00000001"), ("a.bin",), dead, alive)


@pytest.mark.parametrize(
    ("place", "seconds", "expected"),
    [
        (unfinished(6, alive=False), 9e9, False),  # a higher epoch is never ours to touch
        (unfinished(5), 0.0, True),  # our own, and not in progress
        (unfinished(4, dead=True, alive=True), 0.0, True),  # a tombstone says it all
        (unfinished(4, alive=True), 9e9, False),
        (unfinished(4, alive=False), 0.0, True),
        (unfinished(4), 59.0, False),
        (unfinished(4), 60.0, True),
    ],
)
def test_only_what_no_writer_can_finish_is_abandoned(
    place: Unfinished, seconds: float, expected: bool
) -> None:
    assert expected == is_abandoned(
        place, my_epoch=5, in_progress=frozenset(), unchanged_seconds=seconds, grace_seconds=60.0
    )


def test_what_is_being_written_is_not_abandoned() -> None:
    place = unfinished(5)
    busy = frozenset({str(place.name)})
    assert not is_abandoned(place, my_epoch=5, in_progress=busy, unchanged_seconds=9e9, grace_seconds=0.0)


def test_any_change_restarts_the_watch() -> None:
    watch, name = Watch(), CheckpointName(1, 1, "00000001")
    before = Unfinished(name, ("a",), False, None)
    assert watch.unchanged_seconds([before], 10.0) == {name: 0.0}
    assert watch.unchanged_seconds([before], 15.0) == {name: 5.0}
    after = Unfinished(name, ("a", "b"), False, None)
    assert watch.unchanged_seconds([after], 20.0) == {name: 0.0}
    assert watch.unchanged_seconds([], 25.0) == {}
    assert watch.unchanged_seconds([after], 30.0) == {name: 0.0}


def test_an_unknown_writers_partial_goes_after_the_grace_by_our_own_clock() -> None:
    io, clock = MemoryIO(), FakeClock()
    store = CheckpointStore("/run", io=io, clock=clock, grace_seconds=60.0)
    store.claim()
    name = str(draft(1, writer_epoch=store.writer_epoch).name)
    store.begin(name, 0)
    store.write(name, image_of(1))
    store.release()
    # Its claim is torn: nobody can tell who it was.
    writers = io.tree.directories[io.tree.directories[ROOT]["writers"]]
    io.tree.files[writers["00000001.json"]][:] = b""
    heir = CheckpointStore("/run", io=io, clock=clock, grace_seconds=60.0)
    heir.claim()
    clock.skew_wall(1e9)
    assert heir.leftovers() == []
    clock.advance(59.0)
    assert heir.leftovers() == []
    clock.advance(1.0)
    assert heir.leftovers() == [name]
    heir.abandon(name)
    assert heir.leftovers() == []


# ---- the pair of threads


def test_every_index_is_done_once_whatever_the_threads() -> None:
    for threads in (1, 2, 5):
        done: list[int] = []
        side_by_side(done.append, 100, threads=threads)
        assert sorted(done) == list(range(100))


def test_two_indices_are_in_work_at_once() -> None:
    both = threading.Barrier(2)
    side_by_side(lambda index: both.wait(timeout=30) and None, 2)


def test_the_first_failure_is_raised_and_stops_the_rest() -> None:
    done: list[int] = []

    def work(index: int) -> None:
        done.append(index)
        raise OSError(index, "failed")

    with pytest.raises(OSError, match="failed"):
        side_by_side(work, 1000, threads=2)
    assert len(done) <= 2


def test_a_source_that_is_not_concurrent_is_read_in_order_by_one_thread(tmp_path: Path) -> None:
    class Stream(MemoryImage):
        def view(self, start: int, stop: int) -> memoryview:
            calls.append((threading.get_ident(), start))
            return super().view(start, stop)

    calls: list[tuple[int, int]] = []
    with CheckpointStore(tmp_path / "run") as store:
        name = str(draft(1, writer_epoch=store.claim()).name)
        store.begin(name, 0)
        store.write(name, Stream("a.bin", bytes(40 << 20), concurrent=False))
        assert calls == [(threading.get_ident(), start) for start in (0, 16 << 20, 32 << 20)]


# ---- odd sources and odd disks


def test_a_file_name_that_leaves_the_place_is_our_bug() -> None:
    store = CheckpointStore("/run", io=MemoryIO())
    name = str(draft(1, writer_epoch=store.claim()).name)
    store.begin(name, 0)
    for bad in ("../x", "MANIFEST", "", "a/b"):
        with pytest.raises(InternalError):
            store.write(name, MemoryImage(bad, b"x"))
    with pytest.raises(InternalError):
        store.begin("../x", 0)


class SwallowsWrites(MemoryIO):
    def write_at(self, file: int, data: memoryview, offset: int) -> int:
        return 0


class LosesTheEnd(MemoryIO):
    armed = False

    def size(self, file: int) -> int:
        return super().size(file) - self.armed


def test_a_disk_that_takes_nothing_does_not_make_us_spin() -> None:
    with pytest.raises(StoreUnavailable, match="accepted none"):
        CheckpointStore("/run", io=SwallowsWrites()).claim()


def test_a_file_shorter_than_what_was_written_fails_the_save() -> None:
    io = LosesTheEnd()
    store = CheckpointStore("/run", io=io)
    epoch = store.claim()
    io.armed = True
    with pytest.raises(StoreUnavailable, match="after writing"):
        save(store, 1, writer_epoch=epoch)
    io.armed = False
    assert store.names() == []


def test_a_repeated_rename_whose_first_reply_was_lost_counts_as_done() -> None:
    class Repeats(MemoryIO):
        def rename(self, parent: int, old: str, new: str) -> None:
            super().rename(parent, old, new)
            if new == "MANIFEST":
                super().rename(parent, old, new)

    store = CheckpointStore("/run", io=Repeats())
    done = save(store, 1, writer_epoch=store.claim())
    assert store.names() == [str(done.name)]


def test_retiring_what_is_no_checkpoint_name_is_our_bug() -> None:
    io = MemoryIO()
    store = CheckpointStore("/run", io=io)
    store.claim()
    with pytest.raises(InternalError, match="not the name"):
        store.retire("nonsense")


def test_a_store_keeps_the_identity_it_is_given() -> None:
    wanted = "01234567-89ab-cdef-0123-456789abcdef"
    io = MemoryIO()
    CheckpointStore("/run", io=io, uuid=wanted).claim()
    assert CheckpointStore("/run", io=io).uuid == wanted


def test_a_store_of_a_later_format_is_not_written() -> None:
    from holdfast.format.sealed import seal

    io = MemoryIO()
    io.tree.add_file(ROOT, "STORE.json", 7)
    io.tree.write(7, 0, seal({"format": 2, "uuid": "x"}))
    with pytest.raises(StoreError, match="newer"):
        CheckpointStore("/run", io=io).claim()
