"""A request whose answer was lost may have succeeded: every failure at every request of a save."""

import os
import random
from collections.abc import Iterator

import pytest
from fault_proxy import FAULTS, Fault, FaultProxy, fault_proxy
from hidden_uploads import hidden_uploads
from quick_store import NO_RETRIES, QUICK, bucket_at, store_at

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.read import read_files
from holdfast.checkpoints.retain import Ledger, Retention, prune
from holdfast.checkpoints.write import write_checkpoint
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.format.checksum import CHUNK_BYTES
from holdfast.stores.base import KeyTaken, Store
from holdfast.stores.bucket_place import BucketPlace
from holdfast.stores.object_writes import create_once
from holdfast.testing.memory_image import MemoryImage, image_of
from holdfast.testing.object_servers import ObjectServer
from holdfast.testing.store_contract import draft, newest_valid, save

TWO_PARTS = MemoryImage("two-parts.bin", os.urandom(CHUNK_BYTES + 1000))
# Every request of one save of two files, in words.
REQUESTS = {
    "look for newer writers": r"GET .*prefix=.*writers",
    "mark the place": r"PUT .*/MANIFEST\.part",
    "put a small file": rf"PUT .*/{image_of(1).name}",
    "begin an upload": r"POST .*two-parts\.bin\?uploads",
    "send a part": r"PUT .*two-parts\.bin\?partNumber",
    "end an upload": r"POST .*two-parts\.bin\?uploadId",
    "look at what was sent": rf"HEAD .*/{image_of(1).name}",
    "second copy": r"PUT .*/MANIFEST\.2",
    "commit": r"PUT .*/MANIFEST$",
    "remove the mark": r"(POST|DELETE) .*(delete|MANIFEST\.part)",
}


@pytest.fixture(scope="module")
def proxy(weed: ObjectServer) -> Iterator[FaultProxy]:
    with fault_proxy(weed) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def _no_plan_left(proxy: FaultProxy) -> Iterator[None]:
    proxy.plan.clear()
    yield
    proxy.plan.clear()


@pytest.mark.parametrize("request_name", REQUESTS)
def test_one_failure_anywhere_does_not_cost_the_save(
    weed: ObjectServer, proxy: FaultProxy, prefix: str, request_name: str
) -> None:
    """The client library repeats nothing here: what survives is what holdfast itself sees to."""
    large = [TWO_PARTS] if "two-parts" in REQUESTS[request_name] else []
    with store_at(proxy.server, prefix, patience=NO_RETRIES) as store:
        epoch = store.claim()
        for step, what in enumerate(FAULTS):
            proxy.plan[:] = [Fault(REQUESTS[request_name], what)]
            images = [image_of(step), *large]
            write_checkpoint(store, draft(step, writer_epoch=epoch), images)
            assert not proxy.plan, f"{what} did not happen"
            loaded = newest_valid(store)
            assert loaded is not None
            assert loaded.manifest.step == step
            assert all(loaded.files[image.name] == image.view(0, image.size) for image in images)
        assert len(committed(store_at(weed, prefix))) == len(FAULTS)


def test_a_reader_survives_every_failure_once(proxy: FaultProxy, prefix: str) -> None:
    with store_at(proxy.server, prefix, patience=NO_RETRIES) as store:
        write_checkpoint(store, draft(1, writer_epoch=store.claim()), [TWO_PARTS])
        for request in (r"GET .*list-type", r"HEAD .*/MANIFEST$", r"GET .*/MANIFEST$", r"GET .*two-parts"):
            for what in FAULTS:
                proxy.plan[:] = [Fault(request, what)]
                [found] = committed(store)
                if "two-parts" in request:
                    files = read_files(store, found)
                    assert files[TWO_PARTS.name] == TWO_PARTS.view(0, TWO_PARTS.size)
                assert found.problem is None
                assert not proxy.plan, f"{what} at {request} did not happen"


@pytest.mark.parametrize("what", ["error after", "cut after", "twice"])
def test_a_claim_whose_answer_was_lost_is_still_one_claim(proxy: FaultProxy, prefix: str, what: str) -> None:
    proxy.plan[:] = [Fault(r"PUT .*writers/0", what)]
    with store_at(proxy.server, prefix, patience=NO_RETRIES) as store:
        assert store.claim() == 1
        assert not proxy.plan
        save(store, 1, writer_epoch=1)


@pytest.mark.parametrize("what", FAULTS)
def test_a_stumbling_server_is_not_taken_for_one_that_keeps_or_ignores_preconditions(
    weed: ObjectServer, careless: ObjectServer, prefix: str, what: str
) -> None:
    for server, keeps in ((weed, True), (careless, False)):
        with fault_proxy(server) as proxy:
            proxy.decide = lambda number, request, what=what: (
                Fault("", what) if number == 1 and request.startswith("PUT") else None
            )
            place = BucketPlace(bucket_at(proxy.server, prefix, patience=NO_RETRIES), NO_RETRIES)
            # Sent twice, the probe is refused by nobody who ignores preconditions.
            place.probe()
            assert place.is_exclusive is keeps
            assert [request for request, _ in proxy.happened]


def test_other_bytes_under_the_key_are_never_taken_for_ours(weed: ObjectServer, prefix: str) -> None:
    bucket = bucket_at(weed, prefix)
    create_once(bucket, "a/record", b"mine", QUICK)
    create_once(bucket, "a/record", b"mine", QUICK)
    for other in (b"his!", b"longer than mine", b""):
        with pytest.raises(KeyTaken):
            create_once(bucket, "a/record", other, QUICK)


def test_a_commit_that_arrives_after_it_was_given_up_commits_nothing(
    weed: ObjectServer, proxy: FaultProxy, prefix: str
) -> None:
    """The worst of answers: none, and the request still on its way when everything has been cleared."""
    with store_at(proxy.server, prefix, patience=NO_RETRIES) as store:
        epoch = store.claim()
        save(store, 1, writer_epoch=epoch)
        proxy.plan[:] = [Fault(r"PUT .*/MANIFEST$", "cut before") for _ in range(NO_RETRIES.attempts)]
        with pytest.raises(StoreUnavailable, match="not known"):
            save(store, 2, writer_epoch=epoch)
        assert not proxy.plan
        [doubtful] = {key.split("/")[1] for key in bucket_at(weed, prefix).keys("ckpt/")} - set(store.names())
        # Now it arrives.
        bucket_at(weed, prefix).create(f"ckpt/{doubtful}/MANIFEST", b"late")
        assert [found.step for found in committed(store)] == [1]
        assert store.leftovers() == []
        save(store, 3, writer_epoch=epoch)
        assert [found.step for found in committed(store)] == [3, 1]
    with store_at(weed, prefix) as heir:
        heir.claim()
        assert heir.leftovers() == [doubtful]
        heir.abandon(doubtful)
        assert not [key for key in bucket_at(weed, prefix).keys("ckpt/") if doubtful in key]


def test_a_commit_in_doubt_that_did_happen_is_kept(
    weed: ObjectServer, proxy: FaultProxy, prefix: str
) -> None:
    with store_at(proxy.server, prefix, patience=NO_RETRIES) as store:
        epoch = store.claim()
        attempts = NO_RETRIES.attempts
        # It is committed, but nobody can be asked about it any more.
        proxy.plan[:] = [Fault(r"PUT .*/MANIFEST$", "cut after")]
        proxy.plan += [Fault(r"HEAD .*/MANIFEST$", "cut before") for _ in range(attempts * attempts)]
        with pytest.raises(StoreUnavailable, match="not known"):
            save(store, 1, writer_epoch=epoch)
        proxy.plan.clear()
        loaded = newest_valid(store)
        assert loaded is not None
        assert loaded.files[image_of(1).name] == image_of(1).view(0, image_of(1).size)


def test_an_upload_that_cannot_be_finished_leaves_no_hidden_parts(
    weed: ObjectServer, proxy: FaultProxy, prefix: str
) -> None:
    with store_at(proxy.server, prefix, patience=NO_RETRIES) as store:
        epoch = store.claim()
        proxy.plan[:] = [Fault(r"PUT .*partNumber=2", "error before") for _ in range(20)]
        with pytest.raises(StoreError):
            write_checkpoint(store, draft(1, writer_epoch=epoch), [TWO_PARTS])
        proxy.plan.clear()
        assert hidden_uploads(weed, prefix) == []
        assert store.names() == []
        assert bucket_at(weed, prefix).keys("ckpt/") == []
        write_checkpoint(store, draft(2, writer_epoch=epoch), [TWO_PARTS])
        assert [found.step for found in committed(store)] == [2]


def test_thirty_failures_over_a_series_of_saves_cost_no_acknowledged_checkpoint(
    weed: ObjectServer, proxy: FaultProxy, prefix: str
) -> None:
    dice = random.Random(30)
    proxy.happened.clear()
    acknowledged: dict[str, list[MemoryImage]] = {}
    ledger = Ledger()
    with store_at(proxy.server, prefix, patience=NO_RETRIES) as store:
        epoch = store.claim()
        proxy.decide = lambda number, request: (
            Fault("", dice.choice(FAULTS)) if dice.random() < 0.12 else None
        )
        try:
            for step in range(200):
                if len(proxy.happened) >= 30 and step >= 8:
                    break
                images = [image_of(step), TWO_PARTS] if step % 3 == 0 else [image_of(step)]
                try:
                    done = write_checkpoint(store, draft(step, writer_epoch=epoch), images)
                except StoreError:
                    continue
                acknowledged[str(done.name)] = images
                ledger.committed.add(str(done.name))
        finally:
            proxy.decide = lambda number, request: None
        assert len(proxy.happened) >= 30
        assert {what for _, what in proxy.happened} == set(FAULTS)
        _require_intact(store, acknowledged)
        save(store, 1000, writer_epoch=epoch)
        assert not prune(store, Retention(latest=2), ledger).failed
    assert len(committed(store_at(weed, prefix))) == 2


def _require_intact(store: Store, acknowledged: dict[str, list[MemoryImage]]) -> None:
    found = {str(one.name): one for one in committed(store)}
    assert set(acknowledged) <= set(found)
    for name, one in found.items():
        # Also what was never acknowledged: if it is seen, it is whole.
        files = read_files(store, one)
        for image in acknowledged.get(name, []):
            assert files[image.name] == image.view(0, image.size)
