"""Bytes that no node has as they are: parity to be written, or lost data, computed from other members.

Any range can be asked for, in any order, from several threads; the steps of a plan that cover it are carried
out. Memory: one window of input and one of output for each thread, and a few finished windows.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Literal

from holdfast.errors import InternalError
from holdfast.redundancy.plan import Step
from holdfast.redundancy.stripes import Layout, Span
from holdfast.tiers.checked_files import CheckedFiles

# The two ends of a chunk lie in windows that its neighbours need, too.
_WINDOWS_KEPT = 4


class SpanReader:
    """Reads what a plan asks for. `parity` maps members to the file that holds their parity."""

    def __init__(self, layout: Layout, files: CheckedFiles, parity: Mapping[str, str]) -> None:
        self._layout = layout
        self._files = files
        self._parity = parity

    def read(self, span: Span, buffer: memoryview) -> None:
        if span.kind == "parity":
            self._files.read_into(self._parity[span.member], span.start, buffer)
            return
        for part in self._layout.file_ranges(span):
            self._files.read_into(part.name, part.offset, buffer[part.at : part.at + part.size])


class ComputedStream:
    """What `member` holds of `kind`, as `steps` compute it."""

    def __init__(
        self, steps: Iterable[Step], member: str, kind: Literal["data", "parity"], reader: SpanReader
    ) -> None:
        writes = [
            (span.start, span.stop, number, step)
            for step in steps
            for number, span in enumerate(step.writes)
            if (span.member, span.kind) == (member, kind) and span.size
        ]
        self._writes = sorted(writes, key=lambda write: write[0])
        self._starts = [start for start, _, _, _ in self._writes]
        self._reader = reader
        self._what = f"the {kind} of {member}"
        self._guard = threading.Lock()
        self._kept: OrderedDict[int, memoryview] = OrderedDict()
        self._scratch = threading.local()

    def read_into(self, start: int, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            at = bisect_right(self._starts, start + done) - 1
            if at < 0 or start + done >= self._writes[at][1]:
                raise InternalError(f"no step computes byte {start + done} of {self._what}")
            first = start + done - self._starts[at]
            window = self._window(at)
            take = min(len(window) - first, len(buffer) - done)
            buffer[done : done + take] = window[first : first + take]
            done += take

    def _window(self, at: int) -> memoryview:
        with self._guard:
            kept = self._kept.get(at)
        if kept is not None:
            return kept
        window = self._compute(*self._writes[at][2:])
        with self._guard:
            self._kept[at] = window
            while len(self._kept) > _WINDOWS_KEPT:
                self._kept.popitem(last=False)
        return window

    def _compute(self, number: int, step: Step) -> memoryview:
        builder = step.builder()
        for block, span in zip(step.combination.inputs, step.reads, strict=True):
            if span.size:
                memory = self._memory(span.size)
                self._reader.read(span, memory)
                builder.add(block, memory)
        return step.output(builder, number)

    def _memory(self, size: int) -> memoryview:
        memory = getattr(self._scratch, "memory", None)
        if memory is None or len(memory) < size:
            memory = self._scratch.memory = memoryview(bytearray(size))
        return memory[:size]
