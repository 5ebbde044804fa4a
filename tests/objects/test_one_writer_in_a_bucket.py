"""Only one process writes a bucket: epochs by conditional create, with real processes and real races."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest
from quick_store import QUICK, bucket_at, store_at

from holdfast.checkpoints.find import committed
from holdfast.errors import Fenced, RunInUse, SetupError
from holdfast.stores.bucket_place import BucketPlace
from holdfast.stores.claims import WriterLease
from holdfast.stores.owner import this_process
from holdfast.testing.memory_image import image_of
from holdfast.testing.object_servers import ObjectServer
from holdfast.testing.store_contract import draft, save

CHILD = """
    import sys
    from holdfast.stores.locations import open_store
    from holdfast.testing.store_contract import save
    store = open_store(sys.argv[1])
    print("claimed", store.claim(), flush=True)
    for line in sys.stdin:
        try:
            print("saved", save(store, int(line), writer_epoch=store.writer_epoch).name, flush=True)
        except Exception as error:
            print(type(error).__name__, error, flush=True)
"""


class Writer:
    """Another process that writes the bucket and saves when told to."""

    def __init__(self, server: ObjectServer, prefix: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CHILD), f"s3://ckpt/{prefix}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | server.environment,
        )
        assert self.answer().startswith("claimed")

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def save(self, step: int) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{step}\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def writer(weed: ObjectServer, prefix: str) -> Iterator[Writer]:
    writer = Writer(weed, prefix)
    yield writer
    writer.end()


def test_a_living_writer_is_named_then_fenced_then_succeeded(
    weed: ObjectServer, prefix: str, writer: Writer
) -> None:
    assert writer.save(100).startswith("saved e00000001-")
    with store_at(weed, prefix) as store:
        with pytest.raises(RunInUse, match=f"pid {writer.process.pid}"):
            store.claim()
        assert store.claim(take_over=True) == 2
        save(store, 50, writer_epoch=2)
        answer = writer.save(101)
        assert answer.startswith("Fenced")
        assert f"pid {os.getpid()}" in answer
        assert [found.step for found in committed(store)] == [50, 100]


def test_a_killed_writer_is_succeeded_at_once(weed: ObjectServer, prefix: str, writer: Writer) -> None:
    writer.end()
    with store_at(weed, prefix) as store:
        assert store.claim() == 2


def test_a_writer_fenced_between_begin_and_commit_leaves_nothing_visible(
    weed: ObjectServer, prefix: str
) -> None:
    old, new = store_at(weed, prefix), store_at(weed, prefix)
    name = str(draft(1, writer_epoch=old.claim()).name)
    old.begin(name, 4096)
    old.write(name, image_of(1))
    new.claim(take_over=True)
    with pytest.raises(Fenced):
        old.publish(
            name, (b"{}\nsha256:" + __import__("hashlib").sha256(b"{}\n").hexdigest().encode() + b"\n")
        )
    assert new.names() == []
    with pytest.raises(Fenced):
        old.begin(str(draft(2).name), 4096)


def test_a_released_seat_can_be_claimed_again_with_a_higher_epoch(weed: ObjectServer, prefix: str) -> None:
    with store_at(weed, prefix) as first:
        assert first.claim() == first.claim() == 1
    with pytest.raises(SetupError):
        _ = first.writer_epoch
    with store_at(weed, prefix) as second:
        assert second.claim() == 2


def test_a_lost_claim_does_not_bring_back_an_epoch_that_names_bear(weed: ObjectServer, prefix: str) -> None:
    with store_at(weed, prefix) as store:
        store.claim(at_least=7)
        save(store, 1, writer_epoch=7)
    bucket = bucket_at(weed, prefix)
    bucket.delete(bucket.keys("writers/"))
    with store_at(weed, prefix) as store:
        assert store.claim() == 8


def test_eight_claimants_at_once_get_eight_numbers(weed: ObjectServer, prefix: str) -> None:
    me = this_process("2024-01-01T00:00:00+00:00")
    got: list[int] = []
    start = threading.Barrier(8)

    def claim() -> None:
        place = BucketPlace(bucket_at(weed, prefix), QUICK)
        place.is_exclusive = True
        start.wait(30)
        got.append(WriterLease(place).take(me, at_least=1))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(got) == list(range(1, 9))


def test_without_preconditions_an_overwritten_claim_stops_its_owner(
    careless: ObjectServer, prefix: str
) -> None:
    with store_at(careless, prefix) as first, store_at(careless, prefix) as second:
        first.claim()
        # What a race does there: both saw no claim, and the later one replaced the record.
        claims = bucket_at(careless, prefix)
        claims.delete(["writers/00000001.json"])
        assert second.claim() == 1
        with pytest.raises(Fenced):
            save(first, 1)
        save(second, 1)


def test_another_rank_joins_and_both_are_fenced_together(weed: ObjectServer, prefix: str) -> None:
    first, rank, usurper = (store_at(weed, prefix) for _ in range(3))
    epoch = first.claim()
    with pytest.raises(SetupError, match="nobody has claimed"):
        rank.join(epoch + 1)
    rank.join(epoch)
    name = str(draft(1, writer_epoch=epoch).name)
    first.begin(name, 1)
    rank.write(name, image_of(1))
    rank.release()
    with pytest.raises(RunInUse):
        usurper.claim()
    usurper.claim(take_over=True)
    with pytest.raises(Fenced):
        rank.join(epoch)


def test_a_forked_child_is_refused_and_does_not_hang(weed: ObjectServer, prefix: str) -> None:
    store = store_at(weed, prefix)
    store.claim()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.names()
        except SetupError as error:
            code = 0 if "forked" in error.message else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
