"""Read a checkpoint back, every byte verified. Nothing is handed out before all is checked.

Falls back to the next older checkpoint only through `newest_loadable`, and never without saying so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from holdfast.checkpoints.find import Found, committed, look_again
from holdfast.checkpoints.proof import PROVEN, READING, in_doubt, is_doubtful, persist
from holdfast.checkpoints.verified import Copy, DamagedChunk, VerifiedFile, allocate_pages
from holdfast.errors import CorruptCheckpoint, NewerFormat, NoValidCheckpoint, RestoreError, StoreError
from holdfast.format.image import ImageLayout, header_length, parse_image
from holdfast.format.manifest import FileRecord, Manifest
from holdfast.stores.base import Store
from holdfast.stores.patience import Patience
from holdfast.stores.side_by_side import side_by_side

__all__ = ["Loaded", "allocate_pages", "newest_loadable", "read_files"]
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
        with open_all(store, found, records[first : first + FILES_AT_ONCE]) as files:
            buffers = {file.record.name: allocate(file.size) for file in files}
            _read_whole(files, buffers, threads)
        whole.update(buffers)
    return whole


def _read_whole(files: Sequence[VerifiedFile], buffers: Mapping[str, memoryview], threads: int) -> None:
    bad: dict[tuple[str, int], DamagedChunk] = {}

    def read_chunk(file: VerifiedFile, index: int) -> None:
        start, stop = file.span(index)
        try:
            file.chunk_into(index, buffers[file.record.name][start:stop])
        except DamagedChunk as error:
            bad[file.record.name, index] = error

    chunks = [(file, index) for file in files for index in range(len(file.record.digests))]
    each_chunk(chunks, read_chunk, threads)
    if bad:
        first = next(bad[key] for file, index in chunks if (key := (file.record.name, index)) in bad)
        raise first.holding(_layout_of(buffers[first.record.name]))


def each_chunk(
    chunks: Sequence[tuple[VerifiedFile, int]], work: Callable[[VerifiedFile, int], None], threads: int
) -> None:
    """The chunks of all files in one line: the disk does not stand still where one file ends."""
    side_by_side(lambda number: work(*chunks[number]), len(chunks), threads=threads)


def newest_loadable(
    store: Store,
    load: Callable[[Found], T],
    *,
    reject: Callable[[Found, str], None] | None = None,
    patience: Patience = READING,
) -> T | None:
    """What `load` makes of the newest checkpoint that it finds whole; None if the store
    holds none at all.

    `reject(found, why)` hears of every one passed over. NoValidCheckpoint if all were. One that cannot be
    read, and may be whole, is not passed over: StoreUnavailable, after `patience`.
    """
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


def open_verified(store: Store, found: Found, record: FileRecord) -> VerifiedFile:
    """The open file, its size already what the manifest says: so what is allocated for it is bounded."""
    file = store.open(str(found.name), record.name)
    if isinstance(file, VerifiedFile) and file.record.digests == record.digests:
        return file
    return VerifiedFile(record, str(found.name), [Copy(store.where, lambda: file)]).opened()


@contextmanager
def open_all(store: Store, found: Found, records: Sequence[FileRecord]) -> Iterator[list[VerifiedFile]]:
    with ExitStack() as opened:
        # All of them before the first byte: a pruner may take the names away, but not what is open.
        yield [opened.enter_context(open_verified(store, found, record)) for record in records]


def _layout_of(image: memoryview) -> ImageLayout | None:
    try:
        return parse_image(bytes(image[: header_length(bytes(image[:8]), len(image))]), len(image))
    except CorruptCheckpoint:
        return None
