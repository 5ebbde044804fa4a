"""Reusable host memory for images. A slot is leased to one owner at a time and comes back when it lets go."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import InternalError
from holdfast.format.image import ImageLayout


@dataclass
class HostMemory:
    """Page-aligned writable bytes. `keep_alive` owns them."""

    view: memoryview
    keep_alive: Any


def anonymous_memory(nbytes: int, *, children_need_it: bool = False) -> HostMemory:
    """Fresh pages. Private, because only private memory gets huge pages on most systems: without them the
    first copy into a gigabyte takes a quarter of a million page faults."""
    mapping = mmap.mmap(-1, max(nbytes, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _advise(mapping, "MADV_HUGEPAGE")
    if not children_need_it:
        # Else every data loader worker that is forked would make us copy each page that we write next.
        _advise(mapping, "MADV_DONTFORK")
        _not_inherited.add(mapping)
    return HostMemory(memoryview(mapping), mapping)


# A forked child has the objects and not the memory. Were one of them collected there, it would unmap whatever
# the child has put at that address since: another slot, a loader's batch. So a child never lets go of them.
_not_inherited: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
_kept_in_child: list[mmap.mmap] = []
os.register_at_fork(after_in_child=lambda: _kept_in_child.extend(_not_inherited))


def _advise(mapping: mmap.mmap, advice: str) -> None:
    # Advice only: a kernel that does not know it refuses it.
    with contextlib.suppress(OSError, AttributeError):
        mapping.madvise(getattr(mmap, advice))


@dataclass
class ImageBytes:
    """One image of a slot as a source of bytes to write: every byte is there, in any order, on any thread."""

    name: str
    size: int
    memory: HostMemory
    concurrent: bool = True

    def view(self, start: int, stop: int) -> memoryview:
        return self.memory.view[start:stop]


class Slot:
    """Memory for every image of one layout, headers already in place."""

    def __init__(
        self, files: Sequence[str], layouts: Sequence[ImageLayout], allocate: Callable[[int], HostMemory]
    ) -> None:
        self.images = []
        for file, layout in zip(files, layouts, strict=True):
            memory = allocate(layout.padded_size)
            memory.view[: layout.data_start] = layout.header
            self.images.append(ImageBytes(file, layout.size, memory))
        # What a copy plan derives from these addresses once and uses at every save.
        self.views: dict[Any, Any] = {}


class Lease:
    """The right to write into a slot. Exactly one holder; release it once."""

    def __init__(self, slot: Slot, give_back: Callable[[Slot], None]) -> None:
        self.slot = slot
        self._give_back: Callable[[Slot], None] | None = give_back

    def release(self) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is None:
            raise InternalError("a staging slot was released twice")
        give_back(self.slot)


class SlotPool:
    """At most `limit` slots of one layout, made when first needed."""

    def __init__(self, make: Callable[[], Slot], limit: int) -> None:
        self._make = make
        self._limit = limit
        self._free: list[Slot] = []
        self._made = 0
        self._changed = threading.Condition()

    def lease(self, timeout: float = 0.0) -> Lease | None:
        """A slot, waiting up to `timeout` seconds for one to come back; None if none did."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free or self._made < self._limit, timeout):
                return None
            if self._free:
                return Lease(self._free.pop(), self._give_back)
            self._made += 1
        try:
            return Lease(self._make(), self._give_back)
        except BaseException:
            with self._changed:
                self._made -= 1
                self._changed.notify()
            raise

    def drain(self, timeout: float = 0.0) -> bool:
        """Wait until no slot is leased, then let go of their memory. False, and nothing changed, if one did
        not come back within `timeout`."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._free) == self._made, timeout):
                return False
            self._free.clear()
            self._made = 0
            return True

    @property
    def available(self) -> bool:
        with self._changed:
            return bool(self._free) or self._made < self._limit

    def _give_back(self, slot: Slot) -> None:
        with self._changed:
            self._free.append(slot)
            self._changed.notify()
