"""The contract, kept by the directory store over a real disk, over memory, and without direct I/O."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.stores.base import Store
from holdfast.stores.io import StoreIO
from holdfast.stores.posix import PosixIO
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_io import MemoryIO
from holdfast.testing.store_contract import StoreContract


class Claimed(StoreContract):
    """Gives back at the end what each test claimed."""

    @pytest.fixture(autouse=True)
    def _release(self) -> Iterator[None]:
        self.claimed: list[CheckpointStore] = []
        yield
        for store in self.claimed:
            store.release()

    def make_store(self, tmp_path: Path) -> Store:
        store = CheckpointStore(tmp_path / "run", io=self.make_io())
        store.claim()
        self.claimed.append(store)
        return store

    def make_io(self) -> StoreIO:
        raise NotImplementedError


class TestDirectoryStore(Claimed):
    def make_io(self) -> StoreIO:
        return PosixIO()


class TestBufferedDirectoryStore(Claimed):
    def make_io(self) -> StoreIO:
        return PosixIO(direct=False)


class TestMemoryStore(Claimed):
    def make_io(self) -> StoreIO:
        return MemoryIO()
