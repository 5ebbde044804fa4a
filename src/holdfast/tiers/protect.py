"""After a checkpoint is committed on all nodes: copies or parity, so that it survives the loss of nodes.

Each node does its own share, and only pulls: it reads what it needs from the others, checks every chunk, and
writes into its own store. So there is nobody to wait for and nothing to agree on; a node that is missing
costs the sets it is in, and whoever was interrupted simply does it again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.checkpoints.bytes_source import BytesSource
from holdfast.checkpoints.verified import PageBuffer
from holdfast.errors import CorruptCheckpoint
from holdfast.format.checksum import chunk_span
from holdfast.format.manifest import FileRecord, parse_manifest
from holdfast.format.sealed import seal_of
from holdfast.redundancy.plan import plan_encode
from holdfast.redundancy.record import ParityRecord
from holdfast.redundancy.stripes import Layout
from holdfast.stores.base import ImageSource, Store
from holdfast.tiers.bandwidth import Bandwidth
from holdfast.tiers.checked_files import CheckedFiles
from holdfast.tiers.computed_stream import ComputedStream, SpanReader
from holdfast.tiers.protect_members import Members
from holdfast.tiers.protect_record import (
    StoredParity,
    is_stored,
    parity_name,
    read_parity_record,
    record_name,
)


@dataclass(frozen=True)
class Protected:
    """What one node now keeps for others. `written` is empty where everything was there already."""

    name: str
    kept: tuple[str, ...]
    written: tuple[str, ...]
    bytes_read: int
    bytes_written: int


def protect(
    name: str,
    me: str,
    stores: Mapping[str, Store],
    members: Members,
    *,
    bandwidth: Bandwidth | None = None,
    cancel: threading.Event | None = None,
    verify: bool = False,
) -> Protected:
    """Do the share of node `me`. `stores` has the store of every node by its logical name, this one's too.

    Raises ChunkLost if something that must be read is nowhere whole, Cancelled if `cancel` was set.
    `verify` also reads what is there already and replaces what is damaged.
    """
    mine = stores[me]
    manifest = mine.manifest(name)
    nearest_first = {me: mine, **stores}
    work = _Work(name, mine, verify)
    with CheckedFiles(name, nearest_first, bandwidth=bandwidth, cancel=cancel) as files:
        files.know(parse_manifest(manifest).files)
        partner, record = members.kept_for(me), members.parity_record(me)
        if partner is not None and partner != me:
            for file in members.files[partner]:
                work.ensure(file, lambda file=file: PulledFile(file, files.chunk_into))  # type: ignore[misc]
        elif record is not None:
            _ensure_parity(work, me, record, seal_of(manifest), files)
        return Protected(name, tuple(work.kept), tuple(work.written), files.bytes_read, work.bytes_written)


def _ensure_parity(work: _Work, me: str, record: ParityRecord, checkpoint: str, files: CheckedFiles) -> None:
    layout, name, beside = Layout(record), parity_name(record, me), record_name(record, me)
    stored = read_parity_record(work.mine, work.name, beside)
    if stored is not None and stored.checkpoint == checkpoint and work.has(stored.file):
        work.kept += [name, beside]
        return
    stream = ComputedStream(plan_encode(record, me), me, "parity", SpanReader(layout, files, {}))
    written = work.put(ComputedFile(name, layout.parity_bytes(me), stream.read_into))
    sealed = StoredParity(checkpoint, me, record, written).to_bytes()
    work.put(BytesSource(beside, sealed))
    work.kept += [name, beside]


class _Work:
    """What is done to this node's own store."""

    def __init__(self, name: str, mine: Store, verify: bool) -> None:
        self.name = name
        self.mine = mine
        self.kept: list[str] = []
        self.written: list[str] = []
        self.bytes_written = 0
        self._verify = verify
        self._held = dict(mine.held(name))

    def has(self, record: FileRecord) -> bool:
        if self._held.get(record.name) != record.size:
            return False
        return not self._verify or is_stored(self.mine, self.name, record)

    def ensure(self, record: FileRecord, source: Callable[[], PulledFile]) -> None:
        if not self.has(record):
            self.put(source(), record)
        self.kept.append(record.name)

    def put(self, source: ImageSource, expect: FileRecord | None = None) -> FileRecord:
        record = self.mine.write(self.name, source, expect=expect, replace=source.name in self._held)
        self.written.append(record.name)
        self.bytes_written += record.size
        return record


class PulledFile:
    """Satisfies ImageSource: a file of the manifest, chunk by chunk from wherever it is good."""

    concurrent = True

    def __init__(self, record: FileRecord, chunk_into: Callable[[str, int, memoryview], None]) -> None:
        self.name, self.size = record.name, record.size
        self._record = record
        self._chunk_into = chunk_into
        self._buffers = PageBuffer()

    def view(self, start: int, stop: int) -> memoryview:
        view = self._buffers.of(stop - start)
        index, inside = divmod(start, self._record.chunk_bytes)
        if inside or min(stop, self.size) != chunk_span(index, self.size, self._record.chunk_bytes)[1]:
            raise CorruptCheckpoint(f"{self.name} has digests for chunks of {self._record.chunk_bytes} bytes")
        self._chunk_into(self.name, index, view[: min(stop, self.size) - start])
        return view


class ComputedFile:
    """Satisfies ImageSource: bytes that `read_into(start, buffer)` computes."""

    concurrent = True

    def __init__(self, name: str, size: int, read_into: Callable[[int, memoryview], None]) -> None:
        self.name, self.size = name, size
        self._read_into = read_into
        self._buffers = PageBuffer()

    def view(self, start: int, stop: int) -> memoryview:
        view = self._buffers.of(stop - start)
        self._read_into(start, view[: min(stop, self.size) - start])
        return view
