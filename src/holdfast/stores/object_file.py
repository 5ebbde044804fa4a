"""An open object: every read asks for the very object that was opened, so bytes are never of two minds.

Unlike a file it does not outlive its deletion: a reader that is overtaken by a pruner gets StoreNotFound,
and looks for a newer checkpoint, which a pruner has always left.
"""

from __future__ import annotations

import threading

from holdfast.errors import StoreNotFound
from holdfast.stores.bucket import Bucket

# A request costs a round trip, 10 to 100 ms at a real provider: small reads in a row share one.
AHEAD_BYTES = 8 << 20
_TINY_BYTES = 64 << 10


class ObjectFile:
    """Satisfies StoredFile. `read_into` may be called from several threads; each holds one block ahead."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        state = bucket.look(key)
        if state is None:
            raise StoreNotFound(f"there is no {key} in {bucket.where}", hint="it may have been pruned")
        self.size = state.size
        self._tag = state.tag
        self._bucket = bucket
        self._key = key
        self._ahead = threading.local()

    def read_into(self, offset: int, buffer: memoryview) -> None:
        if _TINY_BYTES <= len(buffer) <= AHEAD_BYTES // 2:
            block, start = self._block(offset, len(buffer))
            buffer[:] = block[offset - start : offset - start + len(buffer)]
        else:
            self._bucket.read(self._key, offset, buffer, self._tag)

    def _block(self, offset: int, length: int) -> tuple[memoryview, int]:
        block, start = getattr(self._ahead, "block", (memoryview(b""), 0))
        if not start <= offset <= offset + length <= start + len(block):
            start = offset
            block = memoryview(bytearray(max(length, min(AHEAD_BYTES, self.size - offset))))
            self._bucket.read(self._key, offset, block, self._tag)
            self._ahead.block = block, start
        return block, start

    def close(self) -> None:
        self._ahead = threading.local()
