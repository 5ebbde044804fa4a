"""Work on numbered chunks from a few threads at once: hashing and I/O both let the interpreter go.

The first failure stops the others at their next chunk and is raised to the caller.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


def side_by_side(work: Callable[[int], None], count: int, *, threads: int = 2) -> None:
    """Call `work(i)` for every i below `count`; each thread takes the next index as it gets free.

    The calling thread is one of them. There is no time limit: a disk that never answers blocks the caller
    just as one plain write would, and only whoever gave this work a deadline can say what that means.
    """
    indices = iter(range(count))
    taking = threading.Lock()
    failures: list[BaseException] = []

    def run() -> None:
        while not failures:
            with taking:
                index = next(indices, None)
            if index is None:
                return
            try:
                work(index)
            except BaseException as error:  # noqa: BLE001  carried to the caller below, never dropped
                failures.append(error)

    helpers = [
        threading.Thread(target=run, name="holdfast-chunks", daemon=True)
        for _ in range(min(threads, count) - 1)
    ]
    for helper in helpers:
        helper.start()
    run()
    for helper in helpers:
        helper.join()
    if failures:
        raise failures[0]
