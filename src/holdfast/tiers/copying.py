"""Copy a checkpoint from the nearest good copies into one target. Checked when read, digested when written,
compared with the manifest before it gets its name; the same sealed manifest comes last."""

from __future__ import annotations

import threading
from collections.abc import Collection

from holdfast.checkpoints.proof import PROVEN
from holdfast.checkpoints.verified import Copy, VerifiedFile, allocate_pages
from holdfast.errors import SaveError, StoreNotFound
from holdfast.format.checksum import CHUNK_BYTES
from holdfast.format.manifest import FileRecord, Manifest, parse_manifest
from holdfast.stores.base import PAGE, Store, StoredFile
from holdfast.tiers.bandwidth import Bandwidth
from holdfast.tiers.ladder import Ladder
from holdfast.tiers.named_tier import HoldersAway

# A source that cannot be read for now is asked again: giving up would lose what must be kept.
_LOST = (*PROVEN, HoldersAway)


class SourceLost(SaveError):
    """No tier has a good copy of what was to be copied: retired meanwhile, or damaged."""


class Copier:
    """Copies into one target. Used by one thread at a time."""

    def __init__(
        self,
        ladder: Ladder,
        target: Store,
        *,
        bandwidth: Bandwidth | None = None,
        cancel: threading.Event | None = None,
    ) -> None:
        self.target = target
        self._ladder = ladder
        self._bandwidth = bandwidth or Bandwidth(None)
        self._cancel = cancel or threading.Event()
        # What this process has put there needs no second look.
        self._put: set[tuple[str, str]] = set()

    def copy(self, name: str, files: Collection[str] | None = None) -> list[FileRecord]:
        """Bring the files (all, if None) of a checkpoint to the target. Those that are whole there already,
        left by whoever was killed, are checked and kept. Commits nothing."""
        records = [r for r in self.manifest(name).files if files is None or r.name in files]
        for record in records:
            if (name, record.name) not in self._put:
                self._bring(name, record)
                self._put.add((name, record.name))
        return records

    def is_complete(self, name: str) -> bool:
        """Whether every file of the checkpoint is at the target, whoever copied it."""
        return all(self._size(name, r.name) == r.size for r in self.manifest(name).files)

    def publish(self, name: str) -> None:
        """Commit at the target what has been copied there by this process and by others."""
        if not self.is_complete(name):
            raise SaveError(f"not every file of {name} has come to {self.target.where} yet")
        self.target.publish(name, self._manifest_bytes(name))
        self.forget(name)

    def forget(self, name: str) -> None:
        self._put = {pair for pair in self._put if pair[0] != name}

    def manifest(self, name: str) -> Manifest:
        return parse_manifest(self._manifest_bytes(name))

    def _manifest_bytes(self, name: str) -> bytes:
        try:
            return self._ladder.manifest(name)
        except _LOST as error:
            raise SourceLost(f"{name} is gone before it could be copied: {error.message}") from error

    def _bring(self, name: str, record: FileRecord) -> None:
        size = self._size(name, record.name)
        if size == record.size and self._is_whole(name, record):
            return
        try:
            file = self._ladder.open(name, record.name)
        except _LOST as error:
            raise SourceLost(f"{record.name} of {name} is gone: {error.message}") from error
        try:
            source = LadderSource(record, file, self._bandwidth, self._cancel)
            self.target.write(name, source, expect=record, replace=size is not None)
        finally:
            file.close()

    def _size(self, name: str, file: str) -> int | None:
        """The size of a file at the target; None if it is not there."""
        try:
            opened = self.target.open(name, file)
        except StoreNotFound:
            return None
        try:
            return opened.size
        finally:
            opened.close()

    def _pace(self, count: int) -> None:
        self._bandwidth.take(count, self._cancel)

    def _is_whole(self, name: str, record: FileRecord) -> bool:
        """Whether what lies at the target has every digest of its record."""
        there = Copy(self.target.where, lambda: self.target.open(name, record.name))
        with VerifiedFile(record, name, [there], pace=self._pace).opened() as file:
            return not file.bad_chunks(threads=1, first_only=True)


class LadderSource:
    """Satisfies ImageSource: the checked bytes of a stored file, a chunk at a time, through one buffer."""

    concurrent = False

    def __init__(
        self, record: FileRecord, file: StoredFile, bandwidth: Bandwidth, cancel: threading.Event
    ) -> None:
        self.name, self.size = record.name, record.size
        self._file = file
        self._bandwidth = bandwidth
        self._cancel = cancel
        self._buffer = allocate_pages(min(CHUNK_BYTES, self.size) + PAGE)

    def view(self, start: int, stop: int) -> memoryview:
        if stop - start > len(self._buffer):
            self._buffer = allocate_pages(stop - start)
        inside = min(stop, self.size) - start
        self._bandwidth.take(inside, self._cancel)
        try:
            self._file.read_into(start, self._buffer[:inside])
        except _LOST as error:
            raise SourceLost(f"{self.name} could not be read to its end: {error.message}") from error
        return self._buffer[: stop - start]
