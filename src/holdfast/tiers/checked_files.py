"""Files of one checkpoint, read from whichever node has them, every chunk checked before it is used.

A chunk that matches its digest is good wherever it lies; one that does not is as good as lost.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Self

from holdfast.checkpoints.verified import Copy, Failure, KeptChunks, VerifiedFile
from holdfast.errors import CorruptCheckpoint, HoldfastError, RestoreError, StoreNotFound
from holdfast.format.checksum import CHUNK_BYTES
from holdfast.format.manifest import FileRecord
from holdfast.stores.base import Store
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
        sources: Mapping[str, Store],
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
        self._files: dict[str, VerifiedFile] = {}
        self._kept = KeptChunks(_KEPT_BYTES)
        self.held = self._take_stock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        with self._guard:
            files, self._files = list(self._files.values()), {}
        self._kept.clear()
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
        self._verified(file).chunk_into(index, buffer)

    def read_into(self, file: str, start: int, buffer: memoryview) -> None:
        """Any range. The chunks it lies in are kept for a while: ranges tend to follow each other."""
        self._verified(file).read_into(start, buffer)

    # ---- how

    def _verified(self, file: str) -> VerifiedFile:
        with self._guard:
            if file not in self._files:
                copies = [
                    Copy(node, lambda node=node: self.sources[node].open(self.name, file))  # type: ignore[misc]
                    for node in self.holders(file)
                ]
                self._files[file] = VerifiedFile(
                    self._records[file],
                    self.name,
                    copies,
                    lost=lambda index, failures: self._lost(file, index or 0, failures),
                    failed=lambda copy, error, index: self._give_up(copy.name, file, error),
                    pace=self._wait_for_bandwidth,
                    count=self._count,
                    kept=self._kept,
                )
            return self._files[file]

    def _lost(self, file: str, index: int, failures: list[Failure]) -> ChunkLost:
        reasons = "; ".join(f"{copy.name}: {error.message}" for copy, error in failures)
        what = reasons or "no node has it" + self._unreachable()
        return ChunkLost(file, index, f"chunk {index} of {file} of {self.name} is good nowhere: {what}")

    def _count(self, copy: Copy, count: int) -> None:
        with self._guard:
            self.bytes_read += count

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

    def _give_up(self, node: str, file: str, error: HoldfastError) -> None:
        """Bytes that do not match are no reason: others of this file may."""
        if isinstance(error, CorruptCheckpoint):
            return
        with self._guard:
            left = {name: size for name, size in self.held.get(node, {}).items() if name != file}
            self.held[node] = left
            self.silent[node] = error.message

    def _unreachable(self) -> str:
        silent = [f"{node} ({why})" for node, why in self.silent.items()]
        return f"; without an answer: {', '.join(silent)}" if silent else ""
