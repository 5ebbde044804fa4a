"""What every test gets: one compute thread, so that results are bits and not luck, and a look at what it
leaves behind."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples every time: a change is judged by what it changes. `make torture` draws new ones.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("default" if os.environ.get("HOLDFAST_TORTURE") else "steady")

# Before anything imports torch: two cores are shared by everything that runs here.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
# What other runs of this user learned must not decide what a test sees.
os.environ["HOLDFAST_LEARN"] = "off"


@pytest.fixture(scope="session", autouse=True)
def _one_compute_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def counted() -> Callable[[str, int, str, int], None]:
    """Notes how much a campaign tried and how often it found what it looks for: `make torture` collects these
    notes in the file HOLDFAST_COUNTS and writes them into docs/guarantees.md."""

    def note(tried: str, count: int, looked_for: str, found: int) -> None:
        if path := os.environ.get("HOLDFAST_COUNTS"):
            line = json.dumps({"tried": tried, "count": count, "looked_for": looked_for, "found": found})
            with open(path, "a") as file:
                file.write(line + "\n")

    return note


def _holdfast_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("holdfast") and t.is_alive()]


def _locks_held() -> list[str]:
    """Writers' locks that this process holds open."""
    held = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{number}")
            if Path(target).name == "LOCK" or target.endswith("/LOCK (deleted)"):
                held.append(target)
    return held


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    """A thread or a lock that outlives its run would hold a file system, a folder or a process."""
    threads_before, locks_before = set(_holdfast_threads()), _locks_held()
    yield
    # A worker that was told to end may need a moment to be gone; it is not given more than that.
    end = time.monotonic() + 5
    for thread in set(_holdfast_threads()) - threads_before:
        thread.join(max(end - time.monotonic(), 0))
    left = set(_holdfast_threads()) - threads_before
    assert not left, f"threads left behind: {left}"
    assert _locks_held() == locks_before, "a writer's lock was left behind"
