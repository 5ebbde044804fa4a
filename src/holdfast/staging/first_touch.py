"""Memory that is written once and kept, as by a restore: in huge pages where those come at once.

A virtual machine may have given its free huge pages back to the host and has to ask for each of them again,
at a third of the speed of small ones, which come from what was used lately. Which of the two holds is only
known by trying.
"""

from __future__ import annotations

import contextlib
import mmap

from holdfast.clock import Clock, SystemClock
from holdfast.staging.slots import HostMemory, anonymous_memory

_HUGE_PAGE = 2 << 20
_TRIED_PAGES = 16
# A kernel clears a huge page at ten times this; below it, somebody else has to find the memory first.
_SLOW_BYTES_PER_SECOND = 1 << 30


def memory_to_keep(nbytes: int, clock: Clock | None = None) -> HostMemory:
    """Inherited by forked children: what is restored may be part of what they work on."""
    memory = anonymous_memory(nbytes, children_need_it=True)
    if nbytes < 8 * _TRIED_PAGES * _HUGE_PAGE:
        return memory
    clock = clock or SystemClock()
    begun = clock.monotonic()
    for page in range(_TRIED_PAGES):
        memory.view[page * _HUGE_PAGE] = 0
    if clock.monotonic() - begun > _TRIED_PAGES * _HUGE_PAGE / _SLOW_BYTES_PER_SECOND:
        # What has been touched stays as it is.
        with contextlib.suppress(OSError, AttributeError):
            memory.keep_alive.madvise(mmap.MADV_NOHUGEPAGE)
    return memory
