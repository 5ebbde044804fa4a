"""What the tests of the laboratory share: where they work, and the number that their dice begin with."""

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def seed() -> int:
    return int(os.environ.get("HOLDFAST_SEED", random.SystemRandom().randrange(1 << 30)))


@pytest.fixture
def work() -> Iterator[Path]:
    """In memory: what counts here are numbers, and a disk that is waited for would take most of the time."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as place:
        yield Path(place)
