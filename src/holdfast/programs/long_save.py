"""Signs of life while a save takes its time: gigabytes of a program's memory may need many minutes.

Bounded: a save that never ends must look like the hang that it is.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from holdfast.clock import Clock
from holdfast.jobs.heartbeat import SECONDS_BETWEEN, HeartbeatWriter


@contextlib.contextmanager
def signs_of_life(heartbeat: HeartbeatWriter, clock: Clock, step: int, limit: float) -> Iterator[None]:
    """Beat from a thread until the block ends, but not longer than `limit` seconds."""
    if not heartbeat.is_watched:
        yield
        return
    done = threading.Event()

    def beat() -> None:
        end = clock.monotonic() + limit
        while not done.wait(SECONDS_BETWEEN) and (now := clock.monotonic()) < end:
            heartbeat.beat(now, step)

    thread = threading.Thread(target=beat, name="holdfast-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        # Before the next beat of the main thread: two writers would mix their counts.
        done.set()
        thread.join()
