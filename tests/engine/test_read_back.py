"""Reading back what was committed: behind saves, within its share, by the ranks that wrote it."""

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "ranks"))
from crew import crew

from holdfast.checkpoints.find import Found, committed
from holdfast.checkpoints.retain import Ledger, Retention, prune
from holdfast.checkpoints.write import Committed, write_checkpoint
from holdfast.clock import SystemClock
from holdfast.engine.housekeeping import Housekeeping
from holdfast.engine.read_back import ReadBack
from holdfast.engine.telemetry import Telemetry
from holdfast.stores.base import StoredFile
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_image import MemoryImage, image_of
from holdfast.testing.store_contract import draft, save

LIMIT = 30.0
CHUNK = 16 << 20
TWO = Retention(latest=2)


class Watched(CheckpointStore):
    """Notes which files are opened for reading; they wait at the gate."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.opened: list[str] = []
        self.asked, self.gate = threading.Event(), threading.Event()

    def open(self, name: str, file: str) -> Any:
        self.opened.append(file)
        self.asked.set()
        assert self.gate.wait(LIMIT)
        return super().open(name, file)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Watched]:
    with Watched(tmp_path) as store:
        store.claim()
        yield store
        store.gate.set()


def keeper(store: CheckpointStore, **more: Any) -> Housekeeping:
    return Housekeeping(store, TWO, SystemClock(), Telemetry(lambda event: None), **more)


def steps(store: CheckpointStore) -> list[int]:
    return sorted(found.step for found in committed(store))


def test_a_save_never_waits_for_the_one_before_to_be_read_back(store: Watched) -> None:
    house = keeper(store)
    for step in range(1, 6):
        house.after_commit(save(store, step, writer_epoch=store.writer_epoch))
    assert store.asked.wait(LIMIT)
    # Nothing has been read to its end, so nothing has gone; and all five were saved meanwhile.
    assert steps(store) == [1, 2, 3, 4, 5]
    store.gate.set()
    house.close(LIMIT)
    assert steps(store) == [4, 5]


def test_until_two_have_been_read_back_nothing_goes_and_then_they_stay(store: Watched) -> None:
    names = [str(save(store, step, writer_epoch=store.writer_epoch).name) for step in range(1, 7)]
    store.gate.set()
    ledger = Ledger(committed=set(names))
    assert prune(store, TWO, ledger, read_back=False).waits
    ledger.verified.add(names[0])
    assert prune(store, TWO, ledger, read_back=False).waits
    ledger.verified.add(names[2])
    assert prune(store, TWO, ledger, read_back=False).retired == (names[1], names[3])
    assert steps(store) == [1, 3, 5, 6], "the newest that were read back, and the latest"
    ledger.damaged.add(names[5])
    assert prune(store, TWO, ledger, read_back=False).refused


def big(store: CheckpointStore, step: int, chunks: int) -> Committed:
    image = MemoryImage("data.bin", bytes(chunks * CHUNK))
    return write_checkpoint(store, draft(step, writer_epoch=store.writer_epoch), [image])


class Pieces:
    """A store whose chunks are counted while they are read back."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store, self.read = store, 0
        self.where = store.where
        self.before_each: Callable[[int], None] = lambda count: None

    def open(self, name: str, file: str) -> StoredFile:
        opened = self._store.open(name, file)
        real = opened.read_into

        def read_into(offset: int, buffer: memoryview) -> None:
            if offset % CHUNK == 0:
                self.before_each(self.read)
                self.read += 1
            real(offset, buffer)

        opened.read_into = read_into  # type: ignore[method-assign]
        return opened


def test_it_stands_still_while_a_save_is_in_flight(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store:
        store.claim()
        pieces, saving = Pieces(store), threading.Event()
        looked = threading.Semaphore(0)
        done: list[tuple[str, bool]] = []

        def busy() -> bool:
            looked.release()
            return saving.is_set()

        def save_begins(count: int) -> None:
            if count == 1:
                saving.set()

        pieces.before_each = save_begins
        reader = ReadBack(
            pieces, SystemClock(), busy=busy, done=lambda name, whole: done.append((name, whole)),
            tidy=lambda: None, share=1.0,
        )  # type: ignore[arg-type]  # fmt: skip
        made = big(store, 1, 4)
        reader.submit(Found(made.name, made.manifest))
        for _ in range(6):
            assert looked.acquire(timeout=LIMIT)
        assert pieces.read == 2, "the chunk it was at, and none after it"
        saving.clear()
        reader.close(LIMIT)
        assert done == [(str(made.name), True)]
        assert pieces.read == 4


def test_it_takes_no_more_than_its_share_of_the_time(tmp_path: Path) -> None:
    class Ticking(SystemClock):
        """Each look at it is a second later."""

        now = 0.0

        def monotonic(self) -> float:
            self.now += 1.0
            return self.now

    with CheckpointStore(tmp_path) as store:
        store.claim()
        made = big(store, 1, 3)
        reader = ReadBack(
            store, Ticking(), busy=lambda: False, done=lambda name, whole: None, tidy=lambda: None, share=0.2
        )
        pauses: list[float | None] = []
        reader._hurry.wait = lambda timeout=None: pauses.append(timeout) or False  # type: ignore[method-assign,func-returns-value]
        reader._read(Found(made.name, made.manifest))
        assert pauses == [4.0, 4.0, 4.0], "four seconds of rest for each second of reading"


def test_every_rank_reads_back_what_it_wrote_and_all_must_have(tmp_path: Path) -> None:
    with crew(2) as teams, Watched(tmp_path) as store:
        epoch = store.claim()
        stores = [store, Watched(tmp_path)]
        houses = [keeper(stores[team.rank], team=team) for team in teams]
        store.gate.set()
        for step in range(1, 5):
            images = [image_of(step, name=f"state-r{rank:05d}.safetensors") for rank in range(2)]
            done = write_checkpoint(store, draft(step, writer_epoch=epoch, world=2), images)
            for team, house in zip(teams, houses, strict=True):
                files = tuple(f for f in done.manifest.files if team.leads or f"-r{team.rank:05d}" in f.name)
                house.after_commit(replace(done, manifest=replace(done.manifest, files=files)))
        assert stores[1].asked.wait(LIMIT)
        assert steps(store) == [1, 2, 3, 4], "the second rank has not read its part"
        stores[1].gate.set()
        ending = threading.Thread(target=houses[1].close, args=(LIMIT,))
        ending.start()
        houses[0].close(LIMIT)
        ending.join(LIMIT)
        assert steps(store) == [3, 4]
        assert set(stores[1].opened) == {"state-r00001.safetensors"}
        assert houses[0].ledger.verified >= {str(found.name) for found in committed(store)}
