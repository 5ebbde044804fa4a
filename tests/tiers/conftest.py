import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tier_samples import UUID, directory, shm_root

from holdfast.stores.store import CheckpointStore
from holdfast.tiers.memory import MemoryTier


@pytest.fixture
def shm() -> Iterator[str]:
    root = shm_root()
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def memory(shm: str) -> MemoryTier:
    tier = MemoryTier(UUID, root=shm)
    tier.claim()
    return tier


@pytest.fixture
def make_directory(tmp_path: Path) -> Iterator[Callable[[str], CheckpointStore]]:
    """A claimed directory store; given back at the end."""
    made: list[CheckpointStore] = []

    def make(name: str) -> CheckpointStore:
        made.append(directory(tmp_path / name))
        return made[-1]

    yield make
    for store in made:
        store.release()
