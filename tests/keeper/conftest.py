"""One forking host for all tests of keepers."""

from collections.abc import Iterator

import pytest
from nodes import Host


@pytest.fixture(scope="session")
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.close()
