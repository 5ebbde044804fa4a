"""Read a checkpoint back, checking every byte while it passes. Nothing is handed out before all is checked.

Falls back to the next older checkpoint only through `newest_valid`, and never without saying so.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

from holdfast.checkpoints.find import Found, committed, look_again
from holdfast.checkpoints.proof import PROVEN, READING, in_doubt, is_doubtful, persist
from holdfast.errors import CorruptCheckpoint, NewerFormat, NoValidCheckpoint, RestoreError, StoreError
from holdfast.format.checksum import chunk_span, digest
from holdfast.format.image import ImageLayout, header_length, parse_image
from holdfast.format.manifest import FileRecord, Manifest
from holdfast.stores.base import PAGE, Store, StoredFile
from holdfast.stores.patience import Patience
from holdfast.stores.side_by_side import side_by_side

Allocate = Callable[[int], memoryview]
T = TypeVar("T")
_RELISTINGS = 5
# Files of one checkpoint that are open at the same time: a thousand ranks have thousands, and a process may
# have a thousand descriptors.
FILES_AT_ONCE = 128


@dataclass(frozen=True)
class Loaded:
    """A checkpoint whose every byte was verified."""

    found: Found
    files: Mapping[str, memoryview]

    @property
    def manifest(self) -> Manifest:
        assert self.found.manifest is not None
        return self.found.manifest


def allocate_pages(size: int) -> memoryview:
    """Fresh page-aligned memory, from the system and back to it."""
    # Private: shared pages cost twice as much to touch for the first time.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return memoryview(mmap.mmap(-1, max(-(-size // PAGE) * PAGE, PAGE), flags=flags))[:size]


def read_files(
    store: Store,
    found: Found,
    wanted: Collection[str] | None = None,
    allocate: Allocate = allocate_pages,
    *,
    threads: int = 4,
) -> dict[str, memoryview]:
    """The wanted files (all, if None), verified. CorruptCheckpoint names file, chunk and tensors."""
    manifest = require_manifest(found)
    names = None if wanted is None else frozenset(wanted)
    records = [r for r in manifest.files if names is None or r.name in names]
    missing = (names or frozenset()) - {record.name for record in records}
    if missing:
        raise RestoreError(f"checkpoint {found.name} has no file {', '.join(sorted(missing))}")
    whole: dict[str, memoryview] = {}
    for first in range(0, len(records), FILES_AT_ONCE):
        some = records[first : first + FILES_AT_ONCE]
        with ExitStack() as opened:
            # All of them before the first byte: a pruner may take the names away, but not what is open.
            files = []
            for record in some:
                files.append(open_checked(store, found, record))
                opened.callback(files[-1].close)
            buffers = [allocate(record.size) for record in some]
            _read_verified(store, found, some, files, buffers, threads)
        whole.update(zip((record.name for record in some), buffers, strict=True))
    return whole


def newest_valid(
    store: Store,
    allocate: Allocate = allocate_pages,
    *,
    wanted: Collection[str] | None = None,
    reject: Callable[[Found, str], None] | None = None,
    patience: Patience = READING,
) -> Loaded | None:
    """The newest checkpoint that is whole, read and verified; None if the store holds none at all.

    `reject(found, why)` hears of every one passed over. NoValidCheckpoint if all were. One that cannot be
    read, and may be whole, is not passed over: StoreUnavailable, after `patience`.
    """
    return newest_loadable(
        store,
        lambda found: Loaded(found, read_files(store, found, wanted, allocate)),
        reject=reject,
        patience=patience,
    )


def newest_loadable(
    store: Store,
    load: Callable[[Found], T],
    *,
    reject: Callable[[Found, str], None] | None = None,
    patience: Patience = READING,
) -> T | None:
    """What `load` makes of the newest checkpoint that it finds whole; the rest as for `newest_valid`."""
    reasons: list[str] = []
    for _ in range(_RELISTINGS):
        candidates = persist(lambda: committed(store), patience)
        # A listing that has become empty does not make a fresh start of what was damaged a moment ago.
        reasons = [] if candidates else reasons
        for found in candidates:
            try:
                return load_surely(store, found, load, patience)
            except PROVEN as error:
                reasons.append(f"{found.name}: {error.message}")
                if reject is not None:
                    reject(found, error.message)
        # A pruner may have replaced all we had listed; then there is something new to look at.
        if {str(found.name) for found in candidates} == set(persist(store.names, patience)):
            break
    if not reasons:
        return None
    raise none_is_whole(store, reasons)


def load_surely(store: Store, found: Found, load: Callable[[Found], T], patience: Patience = READING) -> T:
    """What `load` makes of one checkpoint, or the proof that it is no good (see checkpoints/proof.py). Any
    other failure has been tried again and stops whoever asks."""
    try:
        return persist(lambda: load(look_again(store, found)), patience)
    except PROVEN:
        raise
    except StoreError as error:
        raise in_doubt(found.name, store.where, error) from error


def none_is_whole(store: Store, reasons: list[str]) -> NoValidCheckpoint:
    return NoValidCheckpoint(
        f"{store.where} holds {len(reasons)} checkpoints and none is whole:\n  " + "\n  ".join(reasons),
        hint="restore them from another copy, or start afresh with another path",
    )


def require_manifest(found: Found) -> Manifest:
    if found.manifest is None:
        if found.error is not None and (is_doubtful(found.error) or isinstance(found.error, NewerFormat)):
            raise found.error
        raise CorruptCheckpoint(f"checkpoint {found.name} is unreadable: {found.problem}")
    return found.manifest


def open_checked(store: Store, found: Found, record: FileRecord) -> StoredFile:
    """The open file, its size already what the manifest says: so what we allocate for it is bounded."""
    file = store.open(str(found.name), record.name)
    if file.size != record.size:
        file.close()
        raise CorruptCheckpoint(
            f"{record.name} of {found.name} in {store.where} has {file.size} bytes, not {record.size}"
        )
    return file


def is_checked(file: StoredFile, record: FileRecord) -> bool:
    """Whether what this file gives has been compared with these very digests already."""
    return getattr(file, "checked_against", None) == record.digests


def _read_verified(
    store: Store,
    found: Found,
    records: Sequence[FileRecord],
    files: Sequence[StoredFile],
    buffers: Sequence[memoryview],
    threads: int,
) -> None:
    # The chunks of all files in one line: the disk does not stand still where one file ends.
    chunks = [(which, index) for which, record in enumerate(records) for index in range(len(record.digests))]
    bad: list[tuple[int, int]] = []

    def read_chunk(number: int) -> None:
        which, index = chunks[number]
        record, buffer = records[which], buffers[which]
        start, stop = chunk_span(index, record.size, record.chunk_bytes)
        files[which].read_into(start, buffer[start:stop])
        if not is_checked(files[which], record) and digest(buffer[start:stop]) != record.digests[index]:
            bad.append((which, index))

    side_by_side(read_chunk, len(chunks), threads=threads)
    if bad:
        which, index = min(bad)
        layout = _layout_of(buffers[which])
        raise CorruptCheckpoint(damaged_text(store, found, records[which], index, layout))


def damaged_text(
    store: Store, found: Found, record: FileRecord, chunk: int, layout: ImageLayout | None
) -> str:
    """Where the damage is, down to the tensors if the image's header could be read."""
    start, stop = chunk_span(chunk, record.size, record.chunk_bytes)
    spans = layout.spans if layout else {}
    names = [repr(name[:80]) for name, (begin, end) in spans.items() if begin < stop and end > start]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (
        f"{record.name} of {found.name} in {store.where} is damaged: chunk {chunk} (bytes {start} to {stop})"
        f" does not match its digest" + (f"; it holds {', '.join(names[:3])}{more}" if names else "")
    )


def _layout_of(image: memoryview) -> ImageLayout | None:
    try:
        return parse_image(bytes(image[: header_length(bytes(image[:8]), len(image))]), len(image))
    except CorruptCheckpoint:
        return None
