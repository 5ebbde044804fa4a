"""Memory for what is restored: huge pages unless they are slow to come."""

import re
from pathlib import Path

import numpy as np

from holdfast.staging.first_touch import memory_to_keep
from holdfast.testing.fake_clock import FakeClock

SIZE = 256 << 20


class SlowClock(FakeClock):
    """Every look at it costs a second."""

    def monotonic(self) -> float:
        self.advance(1.0)
        return super().monotonic()


def flags(memory: memoryview) -> str:
    address = np.frombuffer(memory, np.uint8).ctypes.data
    for part in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        start, stop = (int(text, 16) for text in part.split(" ", 1)[0].split("-"))
        if start <= address < stop:
            return next(line for line in part.splitlines() if line.startswith("VmFlags:"))
    raise AssertionError("the memory is not mapped")


def test_huge_pages_are_asked_for_where_they_come_at_once() -> None:
    memory = memory_to_keep(SIZE, FakeClock())
    assert " hg" in flags(memory.view)


def test_huge_pages_that_take_long_are_given_up_and_the_memory_is_whole() -> None:
    memory = memory_to_keep(SIZE, SlowClock())
    assert " nh" in flags(memory.view)
    assert len(memory.view) == SIZE
    memory.view[-1] = 7
    assert memory.view[-1] == 7
