"""The contract, kept by the directory store over a real disk, over memory, and without direct I/O."""

from pathlib import Path

from holdfast.stores.base import Store
from holdfast.stores.directory import DirectoryStore
from holdfast.stores.posix import PosixIO
from holdfast.testing.memory_io import MemoryIO
from holdfast.testing.store_contract import StoreContract


class TestDirectoryStore(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        store = DirectoryStore(tmp_path / "run")
        store.claim()
        return store


class TestBufferedDirectoryStore(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        store = DirectoryStore(tmp_path / "run", io=PosixIO(direct=False))
        store.claim()
        return store


class TestMemoryStore(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        store = DirectoryStore("/in/memory", io=MemoryIO())
        store.claim()
        return store
