"""What can be wrong with a bucket is said in words that help, and within a limit."""

import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import Fault, fault_proxy
from quick_store import NO_RETRIES, QUICK, bucket_at, store_at

from holdfast.errors import (
    SetupError,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreNotFound,
    StoreUnavailable,
)
from holdfast.stores.locations import bucket_store, is_bucket, open_store
from holdfast.stores.obstore_bucket import ObstoreBucket
from holdfast.stores.store import CheckpointStore
from holdfast.testing.object_servers import ObjectServer
from holdfast.testing.store_contract import save


def _open(url: str, **options: Any) -> CheckpointStore:
    return bucket_store(ObstoreBucket(url, patience=NO_RETRIES, **options), patience=NO_RETRIES)


@pytest.fixture
def silent() -> Iterator[ObjectServer]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield ObjectServer(f"http://127.0.0.1:{listener.getsockname()[1]}")


def test_wrong_credentials(weed: ObjectServer, prefix: str) -> None:
    for wrong in ({"secret_access_key": "nonsense"}, {"access_key_id": "nobody"}):
        store = _open(f"s3://ckpt/{prefix}", **(weed.options | wrong))
        for call in (store.claim, store.names, lambda store=store: store.uuid):
            with pytest.raises(StoreDenied, match="AWS_ACCESS_KEY_ID"):
                call()


def test_a_bucket_that_is_not_there(weed: ObjectServer, prefix: str) -> None:
    store = _open(f"s3://no-such-bucket/{prefix}", **weed.options)
    for call in (store.claim, store.names):
        with pytest.raises(StoreNotFound, match="make the bucket first"):
            call()


def test_a_prefix_that_is_not_there_is_an_empty_store(weed: ObjectServer, prefix: str) -> None:
    assert store_at(weed, prefix).names() == []


def test_nobody_listens(prefix: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    store = store_at(ObjectServer(f"http://127.0.0.1:{port}"), prefix, patience=NO_RETRIES)
    for call in (store.claim, store.names):
        with pytest.raises(StoreUnavailable, match="check the network"):
            call()


def test_somebody_listens_and_never_answers(silent: ObjectServer, prefix: str) -> None:
    hasty = replace(NO_RETRIES, attempts=2, request_seconds=0.3)
    with pytest.raises(StoreUnavailable, match="check the network"):
        store_at(silent, prefix, patience=hasty).claim()


def test_no_credentials_at_all(prefix: str, silent: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    patience = replace(NO_RETRIES, attempts=1, request_seconds=0.3, connect_seconds=0.3)
    # Then the machine's own role is asked for; here somebody else answers at its address: nobody.
    options = {"metadata_endpoint": silent.endpoint, "endpoint": silent.endpoint, "region": "us-east-1"}
    store = bucket_store(
        ObstoreBucket(f"s3://ckpt/{prefix}", patience=patience, **options), patience=patience
    )
    with pytest.raises(StoreError):
        store.names()


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ("400 <Error><Code>AuthorizationHeaderMalformed</Code></Error>", StoreError, "set AWS_REGION"),
        ("301 <Error><Code>PermanentRedirect</Code></Error>", StoreError, "set AWS_REGION"),
        ("403 <Error><Code>RequestTimeTooSkewed</Code></Error>", StoreDenied, "clock"),
        ("403 <Error><Code>AccessDenied</Code></Error>", StoreDenied, "credentials"),
        ("507 <Error><Code>InsufficientStorage</Code></Error>", StoreFull, "quota"),
        ("503 <Error><Code>SlowDown</Code></Error>", StoreUnavailable, "for a moment"),
    ],
)
def test_what_servers_say(
    weed: ObjectServer, prefix: str, answer: str, kind: type[StoreError], words: str
) -> None:
    with fault_proxy(weed) as proxy:
        proxy.decide = lambda number, request: Fault("", f"say {answer}")
        with pytest.raises(kind, match=words) as raised:
            store_at(proxy.server, prefix, patience=NO_RETRIES).claim()
        assert "\n" not in raised.value.message
        assert "Debug source" not in raised.value.message


def test_from_the_environment_as_users_write_it(
    weed: ObjectServer, prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in weed.environment.items():
        monkeypatch.setenv(name, value)
    with open_store(f"s3://ckpt/{prefix}/") as store:
        assert store.where.startswith("s3://")
        save(store, 1, writer_epoch=store.claim())
    assert len(store_at(weed, prefix).names()) == 1
    assert isinstance(open_store(tmp_path), CheckpointStore)
    assert is_bucket("s3://bucket")
    assert not is_bucket("runs/s3:/x")


@pytest.mark.parametrize("location", ["ftp://host/x", "http://host/x", "S3://bucket/x", "s3://"])
def test_other_addresses_are_refused(location: str) -> None:
    with pytest.raises(SetupError, match="s3://bucket/path"):
        open_store(location)


def test_google_and_azure_addresses_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than that: there is no such server here to talk to."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    assert open_store("az://container/run").where == "az://container/run"
    bucket = ObstoreBucket("gs://bucket/run", patience=QUICK, skip_signature=True)
    assert bucket_store(bucket).where == "gs://bucket/run"


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "holdfast.stores.obstore_bucket", raising=False)
    with pytest.raises(SetupError, match=r"pip install 'holdfast\[objects\]'"):
        open_store("s3://bucket/run")


def test_many_threads_read_one_file(weed: ObjectServer, prefix: str) -> None:
    bucket = bucket_at(weed, prefix)
    content = bytes(range(256)) * (80 << 10)
    bucket.upload("a/file", iter([content]), size=len(content), part_bytes=16 << 20)
    from holdfast.stores.object_file import ObjectFile

    file = ObjectFile(bucket, "a/file")
    wrong: list[int] = []

    def read(first: int) -> None:
        buffer = bytearray(1 << 20)
        for at in range(first << 20, (first + 4) << 20, 1 << 20):
            file.read_into(at, memoryview(buffer))
            if buffer != content[at : at + (1 << 20)]:
                wrong.append(at)

    threads = [threading.Thread(target=read, args=(4 * i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    file.close()
