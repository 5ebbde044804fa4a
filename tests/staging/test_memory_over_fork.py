"""Staging memory that a forked child does not have must not be unmapped there: something else may lie at its
address by then."""

from __future__ import annotations

import gc
import mmap
import os

from holdfast.staging.slots import anonymous_memory

SIZE = 64 << 20


class Cycle:
    """Collected when the garbage collector gets to it, not before."""

    def __init__(self) -> None:
        self.me = self
        self.memory = anonymous_memory(SIZE)


def _child() -> int:
    # The hole that the parent's memory left is the first place where new memory of that size goes.
    own = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    gc.collect()
    own[0] = own[SIZE - 1] = 1
    return own[0] + own[SIZE - 1]


def test_a_child_that_collects_its_parents_slots_keeps_its_own_memory() -> None:
    gc.collect()
    gc.disable()
    try:
        left = [Cycle() for _ in range(3)]
        del left
        child = os.fork()
        if child == 0:
            os._exit(_child())
        _, status = os.waitpid(child, 0)
    finally:
        gc.enable()
    assert not os.WIFSIGNALED(status), f"killed by signal {os.WTERMSIG(status)}"
    assert os.WEXITSTATUS(status) == 2
