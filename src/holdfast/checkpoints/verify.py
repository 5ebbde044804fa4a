"""Is a checkpoint whole? Cheaply (manifest and sizes), or deeply (every byte and every image header)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.checkpoints.find import Found, committed
from holdfast.checkpoints.proof import READING, is_doubtful
from holdfast.checkpoints.read import load_surely, open_verified, require_manifest
from holdfast.checkpoints.verified import VerifiedFile, allocate_pages
from holdfast.errors import CorruptCheckpoint, NewerFormat, StoreError
from holdfast.format.image import ImageLayout, header_length, parse_image
from holdfast.format.names import CheckpointName
from holdfast.stores.base import Store, StoredFile
from holdfast.stores.patience import Patience

Progress = Callable[[int, int], None]
_THREADS = 2


@dataclass(frozen=True)
class Verdict:
    """What verification found. `bytes_checked` counts the bytes whose digests were compared."""

    name: CheckpointName
    is_deep: bool
    bytes_checked: int
    problems: tuple[str, ...]
    # Not every problem proves damage: what could not be read for now may be whole.
    doubt: StoreError | None = None

    @property
    def is_whole(self) -> bool:
        return not self.problems


def verify(
    store: Store,
    found: Found,
    *,
    deep: bool = True,
    progress: Progress | None = None,
    threads: int = _THREADS,
    headers: bool = True,
) -> Verdict:
    """Check one checkpoint and list everything wrong with it.

    `headers` also reads every image's table of contents: what this process has written itself, and whose
    digests are right, it need not. `progress(bytes_done, bytes_total)` may be called from a helper thread,
    never from two at once.
    """
    try:
        manifest = require_manifest(found)
    except (CorruptCheckpoint, StoreError, NewerFormat) as error:
        doubt = error if isinstance(error, StoreError) and is_doubtful(error) else None
        return Verdict(found.name, deep, 0, (error.message,), doubt)
    tally = _Tally(manifest.total_bytes, progress)
    problems: list[str] = []
    doubts: list[StoreError] = []
    for record in manifest.files:
        try:
            with open_verified(store, found, record) as file:
                if deep:
                    problems += _problems_in(
                        f"of {found.name} in {store.where}", file, tally, threads, headers
                    )
        except (CorruptCheckpoint, StoreError) as error:
            problems.append(error.message)
            if isinstance(error, StoreError) and is_doubtful(error):
                doubts.append(error)
    # One proof is enough, whatever else could not be read.
    doubt = doubts[0] if doubts and len(doubts) == len(problems) else None
    return Verdict(found.name, deep, tally.done, tuple(problems), doubt)


def verify_surely(store: Store, found: Found, patience: Patience = READING) -> Verdict:
    """A verdict that proves something, for whoever goes on from an older one if this is damaged. Raises
    StoreUnavailable where nobody can tell, NewerFormat for what only a newer holdfast reads."""

    def judge(found: Found) -> Verdict:
        if isinstance(found.error, NewerFormat):
            raise found.error
        verdict = verify(store, found)
        if verdict.doubt is not None:
            raise verdict.doubt
        return verdict

    return load_surely(store, found, judge, patience)


class _Tally:
    """Bytes checked so far, counted from two threads."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done = 0
        self._total = total
        self._progress = progress
        self._counting = threading.Lock()

    def add(self, count: int) -> None:
        with self._counting:
            self.done += count
            if self._progress is not None:
                self._progress(self.done, self._total)


def _problems_in(where: str, file: VerifiedFile, tally: _Tally, threads: int, headers: bool) -> list[str]:
    problems, layout = [], None
    if headers and file.record.name.endswith(".safetensors"):
        try:
            layout = read_layout(file.nearest())
        except CorruptCheckpoint as error:
            problems.append(f"{file.record.name} {where}: {error.message}")
    bad = file.bad_chunks(threads=threads, checked=tally.add)
    return problems + [damage.holding(layout).message for damage in bad]


def read_layout(file: StoredFile) -> ImageLayout:
    """The image's own table of contents. Page-aligned memory, or the file would leave direct reading."""
    first = allocate_pages(min(8, file.size))
    file.read_into(0, first)
    header = allocate_pages(header_length(bytes(first), file.size))
    file.read_into(0, header)
    return parse_image(bytes(header), file.size)


# ---- Whether the work of a run is done, as its newest checkpoint says. Reads manifests and sizes, no
# data.


def is_complete(store: Store) -> bool:
    """True only if the newest checkpoint of all is whole and was saved when the training had ended.

    A damaged newest one is no answer: whoever asks should run, so that restoring can sort it out.
    """
    newest = next(iter(committed(store)), None)
    return (
        newest is not None
        and newest.manifest is not None
        and newest.manifest.progress.get("complete") is True
        and verify(store, newest, deep=False).is_whole
    )
