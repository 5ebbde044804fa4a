"""Files of one checkpoint, read from whichever node has them, every chunk checked before it is used.

A chunk that matches its digest is good wherever it lies; one that does not is as good as lost.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Self

from holdfast.checkpoints.read import allocate_pages
from holdfast.errors import CorruptCheckpoint, HoldfastError, RestoreError, StoreNotFound
from holdfast.format.checksum import CHUNK_BYTES, chunk_span, digest
from holdfast.format.manifest import FileRecord
from holdfast.stores.base import StoredFile
from holdfast.stores.node_side import NodeSide
from holdfast.stores.side_by_side import side_by_side
from holdfast.tiers.bandwidth import Bandwidth

# For readers of ranges: two chunks for each of eight members.
_KEPT_BYTES = 16 * CHUNK_BYTES
_ASKED_AT_ONCE = 16


class ChunkLost(RestoreError):
    """No node has a good copy of this chunk."""

    def __init__(self, file: str, index: int, message: str) -> None:
        super().__init__(message)
        self.file = file
        self.index = index


class CheckedFiles:
    """`sources` are asked in their order: put the nearest first. Safe to use from several threads."""

    def __init__(
        self,
        name: str,
        sources: Mapping[str, NodeSide],
        *,
        bandwidth: Bandwidth | None = None,
        cancel: threading.Event | None = None,
    ) -> None:
        self.name = name
        self.sources = dict(sources)
        # Why a node gave nothing, for messages.
        self.silent: dict[str, str] = {}
        self.bytes_read = 0
        self._bandwidth = bandwidth if bandwidth is not None else Bandwidth(None)
        self._cancel = cancel if cancel is not None else threading.Event()
        self._pacing = threading.Lock()
        self._records: dict[str, FileRecord] = {}
        self._guard = threading.Lock()
        self._open: dict[tuple[str, str], StoredFile] = {}
        self._loading: dict[str, threading.Lock] = {}
        self._kept: OrderedDict[tuple[str, int], memoryview] = OrderedDict()
        self._spare: list[memoryview] = []
        self.held = self._take_stock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        with self._guard:
            files, self._open = list(self._open.values()), {}
            self._kept.clear()
            self._spare.clear()
        for file in files:
            file.close()

    def know(self, records: Iterable[FileRecord]) -> None:
        """Say which bytes are the right ones. Other files cannot be read."""
        self._records.update((record.name, record) for record in records)

    def record(self, file: str) -> FileRecord:
        return self._records[file]

    def holders(self, file: str) -> list[str]:
        """The nodes that have a file of this name and of the right size."""
        size = self._records[file].size
        return [node for node, held in self.held.items() if held.get(file) == size]

    def chunk_into(self, file: str, index: int, buffer: memoryview) -> None:
        """One whole chunk, good, or ChunkLost."""
        record = self._records[file]
        start, stop = chunk_span(index, record.size, record.chunk_bytes)
        reasons = []
        for node in self.holders(file):
            self._wait_for_bandwidth(stop - start)
            try:
                self._file(node, file).read_into(start, buffer)
                with self._guard:
                    self.bytes_read += stop - start
                if digest(buffer) == record.digests[index]:
                    return
                reasons.append(f"{node}: it does not match its digest")
            except CorruptCheckpoint as error:
                reasons.append(f"{node}: {error.message}")
            except HoldfastError as error:
                # Not asked again for every chunk: each time might cost a limit.
                reasons.append(f"{node}: {error.message}")
                self._give_up(node, file, error)
        what = "; ".join(reasons) or "no node has it" + self._unreachable()
        raise ChunkLost(file, index, f"chunk {index} of {file} of {self.name} is good nowhere: {what}")

    def read_into(self, file: str, start: int, buffer: memoryview) -> None:
        """Any range. The chunks it lies in are kept for a while: ranges tend to follow each other."""
        record, done = self._records[file], 0
        while done < len(buffer):
            index = (start + done) // record.chunk_bytes
            begin, end = chunk_span(index, record.size, record.chunk_bytes)
            first = start + done - begin
            take = min(end - begin - first, len(buffer) - done)
            with self._lock_of(file):
                if not self._copy_kept(file, index, first, buffer[done : done + take]):
                    memory = self._memory_for(end - begin)
                    self.chunk_into(file, index, memory[: end - begin])
                    buffer[done : done + take] = memory[first : first + take]
                    self._keep(file, index, memory)
            done += take

    # ---- how

    def _copy_kept(self, file: str, index: int, first: int, buffer: memoryview) -> bool:
        # Copied while nobody else can let it go: the memory is used again.
        with self._guard:
            kept = self._kept.get((file, index))
            if kept is None:
                return False
            self._kept.move_to_end((file, index))
            buffer[:] = kept[first : first + len(buffer)]
            return True

    def _memory_for(self, size: int) -> memoryview:
        # New memory is slow to touch for the first time, so what was let go is used again.
        with self._guard:
            memory = self._spare.pop() if self._spare else None
        return memory if memory is not None and len(memory) >= size else allocate_pages(max(size, 1))

    def _keep(self, file: str, index: int, memory: memoryview) -> None:
        with self._guard:
            self._kept[file, index] = memory
            while len(self._kept) > 1 and sum(map(len, self._kept.values())) > _KEPT_BYTES:
                self._spare = [self._kept.popitem(last=False)[1]]

    def _wait_for_bandwidth(self, count: int) -> None:
        # One after the other: the bucket is not made for many hands, and waiting is all they would do.
        with self._pacing:
            self._bandwidth.take(count, self._cancel)

    def _take_stock(self) -> dict[str, Mapping[str, int]]:
        held: dict[str, Mapping[str, int]] = {}
        nodes = list(self.sources)

        def ask(number: int) -> None:
            try:
                held[nodes[number]] = self.sources[nodes[number]].held(self.name)
            except StoreNotFound:
                self.silent[nodes[number]] = "it has nothing of this checkpoint"
            except HoldfastError as error:
                self.silent[nodes[number]] = error.message

        side_by_side(ask, len(nodes), threads=_ASKED_AT_ONCE)
        return {node: held[node] for node in nodes if node in held}

    def _file(self, node: str, file: str) -> StoredFile:
        with self._guard:
            opened = self._open.get((node, file))
        if opened is None:
            opened = self.sources[node].open(self.name, file)
            with self._guard:
                other = self._open.setdefault((node, file), opened)
            if other is not opened:
                opened.close()
            return other
        return opened

    def _give_up(self, node: str, file: str, error: HoldfastError) -> None:
        with self._guard:
            left = {name: size for name, size in self.held.get(node, {}).items() if name != file}
            self.held[node] = left
            self.silent[node] = error.message

    def _lock_of(self, file: str) -> contextlib.AbstractContextManager[bool]:
        with self._guard:
            return self._loading.setdefault(file, threading.Lock())

    def _unreachable(self) -> str:
        silent = [f"{node} ({why})" for node, why in self.silent.items()]
        return f"; without an answer: {', '.join(silent)}" if silent else ""
