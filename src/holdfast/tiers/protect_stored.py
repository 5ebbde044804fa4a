"""What a node has stored for others, looked at: is a file whole, what does a parity record say?"""

from __future__ import annotations

from holdfast.checkpoints.verified import Copy, allocate_pages, is_good
from holdfast.errors import CorruptCheckpoint, StoreError
from holdfast.format.manifest import FileRecord
from holdfast.stores.node_side import NodeSide
from holdfast.tiers.protect_record import MAX_RECORD_BYTES, StoredParity, parse_stored_parity


def is_stored(store: NodeSide, name: str, record: FileRecord) -> bool:
    """Whether the file is there and every chunk of it matches its digest."""
    return is_good(record, name, Copy(store.where, lambda: store.open(name, record.name)))


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
