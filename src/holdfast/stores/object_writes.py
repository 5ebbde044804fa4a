"""Writing objects so that the answer is true: a request whose answer was lost may have succeeded.

After every doubt the object is read back and compared. Equal bytes under our key are our write.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from holdfast.errors import CorruptCheckpoint, StoreNotFound, StoreUnavailable
from holdfast.format.checksum import ALGORITHM, CHUNK_BYTES, chunk_count, chunk_span, digest
from holdfast.format.manifest import FileRecord
from holdfast.stores.base import PAGE, ImageSource, KeyTaken
from holdfast.stores.bucket import Bucket
from holdfast.stores.patience import Patience

# S3 takes 10,000 parts, Azure 50,000 blocks.
_MOST_PARTS = 9_000


def create_once(
    bucket: Bucket, key: str, data: bytes, patience: Patience, *, look_first: bool = False
) -> None:
    """Write `data` under a free key, or find that this very write has happened before. KeyTaken if there is
    anything else. `look_first` is for servers that ignore the condition: it narrows the window, no more."""
    doubt: StoreUnavailable | None = None
    for _ in patience.tries():
        try:
            if (look_first or doubt is not None) and _is_written(bucket, key, data):
                return
            bucket.create(key, data)
        except KeyTaken:
            if _is_written(bucket, key, data):
                return
            raise
        except StoreUnavailable as error:
            doubt = error
        else:
            return
    assert doubt is not None
    raise StoreUnavailable(f"{doubt.message}; whether {key} was written is not known", hint=doubt.hint)


def _is_written(bucket: Bucket, key: str, data: bytes) -> bool:
    """Whether exactly `data` is there; False if nothing is; KeyTaken if something else is."""
    try:
        found = read_small(bucket, key, len(data))
    except StoreNotFound:
        return False
    except CorruptCheckpoint:
        found = None
    if found == data:
        return True
    raise KeyTaken(
        f"{key} in {bucket.where} exists, with other content",
        hint="names are never reused: another process may be writing here",
    )


def read_small(bucket: Bucket, key: str, limit: int) -> bytes:
    """A small object whole, refused before anything is allocated if it is larger than it may be."""
    state = bucket.look(key)
    if state is None:
        raise StoreNotFound(f"there is no {key} in {bucket.where}")
    if state.size > limit:
        raise CorruptCheckpoint(f"{key} has {state.size} bytes, more than the {limit} it may have")
    data = bytearray(state.size)
    bucket.read(key, 0, memoryview(data), state.tag)
    return bytes(data)


def upload_image(
    bucket: Bucket,
    key: str,
    source: ImageSource,
    patience: Patience,
    *,
    expect: FileRecord | None = None,
    replace: bool = False,
) -> FileRecord:
    """Send `source` in parts, digesting each chunk as it leaves. Whole and visible when this returns; nothing
    is visible if a chunk is not what `expect` says."""
    if not replace and bucket.look(key) is not None:
        raise KeyTaken(
            f"{key} in {bucket.where} exists",
            hint="names are never reused: another process may be writing here",
        )
    size = source.size
    digests = [""] * chunk_count(size)
    # What is produced on demand comes once; only what lies in memory can be sent again.
    patience = patience if source.concurrent else patience.once()
    for attempt in patience.tries():
        try:
            bucket.upload(key, _pieces(source, digests, expect), size=size, part_bytes=part_bytes(size))
        except (StoreUnavailable, StoreNotFound) as error:
            # "No such upload" is how a repeated completion is answered when the first one had succeeded.
            if not replace and _has_size(bucket, key, size):
                break
            if attempt + 1 == patience.attempts:
                raise StoreUnavailable(error.message, hint=error.hint) from error
        else:
            break
    if not _has_size(bucket, key, size):
        raise StoreUnavailable(f"{key} in {bucket.where} does not have its {size} bytes after it was sent")
    role = expect.role if expect is not None else ""
    return FileRecord(source.name, size, role, ALGORITHM, CHUNK_BYTES, tuple(digests))


def part_bytes(size: int) -> int:
    """One chunk per part, more only where the server's limit on their number asks for it."""
    return CHUNK_BYTES * max(1, -(-size // (CHUNK_BYTES * _MOST_PARTS)))


def _pieces(
    source: ImageSource, digests: list[str], expect: FileRecord | None
) -> Iterator[memoryview | bytes]:
    wanted = None if expect is None else (expect.size, len(expect.digests))
    if wanted not in (None, (source.size, len(digests))):
        raise CorruptCheckpoint(f"{source.name} has {source.size} bytes, and not what its manifest says")
    for index in range(len(digests)):
        start, stop = chunk_span(index, source.size)
        view = source.view(start, -(-stop // PAGE) * PAGE)[: stop - start]
        # The next view may reuse the memory of a source that is not concurrent; parts are sent meanwhile.
        piece = view if source.concurrent else bytes(view)
        digests[index] = digest(piece)
        if expect is not None and digests[index] != expect.digests[index]:
            raise CorruptCheckpoint(f"{source.name} comes with other bytes than its manifest says")
        yield piece


def _has_size(bucket: Bucket, key: str, size: int) -> bool:
    state = bucket.look(key)
    return state is not None and state.size == size


def new_token() -> str:
    """Tells our record from an equal one of somebody else. Never from a seeded generator."""
    return os.urandom(8).hex()
