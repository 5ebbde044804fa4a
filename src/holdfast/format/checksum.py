"""Digests of the bytes we store: one xxh3-128 per 16 MiB chunk, so that damage has an address.

They find accidents, not forgery: xxh3 is not a cryptographic hash. This is the only file that knows xxhash.
"""

from __future__ import annotations

import xxhash

ALGORITHM = "xxh3-128"
CHUNK_BYTES = 16 << 20
DIGEST_HEX_LENGTH = 32


def digest(data: bytes | bytearray | memoryview) -> str:
    """32 lowercase hex characters. Releases the interpreter lock for large inputs."""
    result: str = xxhash.xxh3_128_hexdigest(data)
    return result


class RunningDigest:
    """The same digest of bytes that come in pieces."""

    def __init__(self) -> None:
        self._state = xxhash.xxh3_128()

    def update(self, piece: bytes | bytearray | memoryview) -> None:
        self._state.update(piece)

    def hex(self) -> str:
        result: str = self._state.hexdigest()
        return result


def chunk_count(size: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    return -(-size // chunk_bytes)


def chunk_span(index: int, size: int, chunk_bytes: int = CHUNK_BYTES) -> tuple[int, int]:
    """Where chunk `index` of a file of `size` bytes begins and ends."""
    start = index * chunk_bytes
    return start, min(start + chunk_bytes, size)
