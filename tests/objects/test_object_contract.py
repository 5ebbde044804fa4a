"""The contract, kept in buckets: on a server that keeps preconditions and on one that ignores them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from quick_store import store_at

from holdfast.stores.base import Store
from holdfast.stores.store import CheckpointStore
from holdfast.testing.object_servers import ObjectServer
from holdfast.testing.store_contract import StoreContract


class InBucket(StoreContract):
    open_files_outlive_retirement = False
    server: ObjectServer

    @pytest.fixture(autouse=True)
    def _place(self, prefix: str) -> Iterator[None]:
        self.prefix = prefix
        self.claimed: list[CheckpointStore] = []
        yield
        for store in self.claimed:
            store.release()

    def make_store(self, tmp_path: Path) -> Store:
        store = store_at(self.server, self.prefix)
        store.claim()
        self.claimed.append(store)
        return store


class TestSeaweedFS(InBucket):
    @pytest.fixture(autouse=True)
    def _server(self, weed: ObjectServer) -> None:
        self.server = weed


class TestRclone(InBucket):
    @pytest.fixture(autouse=True)
    def _server(self, careless: ObjectServer) -> None:
        self.server = careless
