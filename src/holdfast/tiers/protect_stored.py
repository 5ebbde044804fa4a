"""What a node has stored for others, looked at: is a file whole, what does a parity record say?"""

from __future__ import annotations

from holdfast.checkpoints.read import allocate_pages
from holdfast.errors import CorruptCheckpoint, StoreError
from holdfast.format.checksum import chunk_span, digest
from holdfast.format.manifest import FileRecord
from holdfast.stores.node_side import NodeSide
from holdfast.stores.side_by_side import side_by_side
from holdfast.tiers.protect_record import MAX_RECORD_BYTES, StoredParity, parse_stored_parity


def is_good(store: NodeSide, name: str, record: FileRecord) -> bool:
    """Whether the file is there and every chunk of it matches its digest."""
    try:
        file = store.open(name, record.name)
    except (StoreError, CorruptCheckpoint):
        return False
    bad: list[int] = []

    def check(index: int) -> None:
        start, stop = chunk_span(index, record.size, record.chunk_bytes)
        if bad:
            return
        buffer = allocate_pages(stop - start)
        file.read_into(start, buffer)
        if digest(buffer) != record.digests[index]:
            bad.append(index)

    try:
        if file.size != record.size:
            return False
        side_by_side(check, len(record.digests))
    except (StoreError, CorruptCheckpoint):
        return False
    finally:
        file.close()
    return not bad


def read_parity_record(store: NodeSide, name: str, file: str) -> StoredParity | None:
    """None if there is none, or none that is whole: then its parity is of no use, either."""
    try:
        opened = store.open(name, file)
        try:
            if opened.size > MAX_RECORD_BYTES:
                return None
            buffer = allocate_pages(opened.size)
            opened.read_into(0, buffer)
        finally:
            opened.close()
        return parse_stored_parity(bytes(buffer))
    except (StoreError, CorruptCheckpoint):
        return None
