"""The sealed record beside a parity file: which set it belongs to, and the digests of its bytes.

Each member writes one for the parity it stores itself, after that parity: a parity file without its record is
not used. The set in it is the same on all members, so any one of them that is left tells how to rebuild.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from holdfast.checkpoints.verified import Copy, allocate_pages, is_good
from holdfast.errors import CorruptCheckpoint, StoreError
from holdfast.format.checksum import ALGORITHM, CHUNK_BYTES, DIGEST_HEX_LENGTH, chunk_count
from holdfast.format.manifest import FileRecord
from holdfast.format.sealed import canonical_json, seal, unseal
from holdfast.redundancy.record import ParityRecord, parse_record
from holdfast.redundancy.stripes import Layout
from holdfast.stores.base import Store

FORMAT = 1
MAX_RECORD_BYTES = 64 << 20
_NAME = re.compile(r"parity-[0-9a-f]{16}-[0-9]{3}\.json", re.ASCII)
_DIGEST = re.compile(f"[0-9a-f]{{{DIGEST_HEX_LENGTH}}}", re.ASCII)


def set_key(record: ParityRecord) -> str:
    """Sets that differ in anything never share a file name."""
    return hashlib.sha256(canonical_json(record.to_json())).hexdigest()[:16]


def parity_name(record: ParityRecord, member: str) -> str:
    return f"parity-{set_key(record)}-{Layout(record).number(member):03d}.bin"


def record_name(record: ParityRecord, member: str) -> str:
    return parity_name(record, member).removesuffix(".bin") + ".json"


def is_record_name(file: str) -> bool:
    return _NAME.fullmatch(file) is not None


@dataclass(frozen=True)
class StoredParity:
    """One member's parity: `file` as a manifest would list it. `checkpoint` is the seal of the manifest."""

    checkpoint: str
    member: str
    record: ParityRecord
    file: FileRecord

    def to_bytes(self) -> bytes:
        return seal(
            {
                "format": FORMAT,
                "checkpoint": self.checkpoint,
                "member": self.member,
                "set": self.record.to_json(),
                "algorithm": self.file.algorithm,
                "chunk_bytes": self.file.chunk_bytes,
                "digests": list(self.file.digests),
            }
        )


def parse_stored_parity(data: bytes) -> StoredParity:
    """Strict, like everything that decides which bytes are right."""
    raw = unseal(data)
    known = {"format", "checkpoint", "member", "set", "algorithm", "chunk_bytes", "digests"}
    if set(raw) != known or raw["format"] != FORMAT or type(raw["format"]) is not int:
        raise CorruptCheckpoint(f"a parity record is not of format {FORMAT}")
    record, member, digests = parse_record(raw["set"]), raw["member"], raw["digests"]
    if member not in [one.name for one in record.members] or not isinstance(raw["checkpoint"], str):
        raise CorruptCheckpoint("a parity record names no member of its set, or no checkpoint")
    if (raw["algorithm"], raw["chunk_bytes"]) != (ALGORITHM, CHUNK_BYTES):
        raise CorruptCheckpoint("a parity record has digests that this version cannot compute")
    size = Layout(record).parity_bytes(member)
    if not isinstance(digests, list) or len(digests) != chunk_count(size):
        raise CorruptCheckpoint("a parity record has digests for another length")
    if not all(isinstance(d, str) and _DIGEST.fullmatch(d) for d in digests):
        raise CorruptCheckpoint("a parity record has something else where digests should be")
    file = FileRecord(parity_name(record, member), size, "parity", ALGORITHM, CHUNK_BYTES, tuple(digests))
    return StoredParity(raw["checkpoint"], member, record, file)


# ---- What a node has stored for others, looked at: is a file whole, what does a parity record say?


def is_stored(store: Store, name: str, record: FileRecord) -> bool:
    """Whether the file is there and every chunk of it matches its digest."""
    return is_good(record, name, Copy(store.where, lambda: store.open(name, record.name)))


def read_parity_record(store: Store, name: str, file: str) -> StoredParity | None:
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
