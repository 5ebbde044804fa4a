"""An output's files, copied out for whoever reads them, every chunk checked on the way.

Copies and not links: whoever writes into a restored file must not be able to change a committed one.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.checkpoints.find import Found
from holdfast.checkpoints.read import open_verified, read_files, require_manifest
from holdfast.engine.outputs_files import StoredOutput, stored_files
from holdfast.engine.outputs_scratch import Scratch
from holdfast.errors import CorruptCheckpoint, IncompatibleState
from holdfast.format.manifest import FileRecord
from holdfast.format.rank_record import parse_rank_record, record_name
from holdfast.stores.base import Store


class Restoring:
    """One rank's part: it copies what `wanted` wrote (its own number, if None), and checks its share of what
    nobody copies, so that together the ranks look at every byte."""

    def __init__(self, store: Store, scratch: Scratch, rank: int, world: int, wanted: int | None) -> None:
        self._store = store
        self._scratch = scratch
        self._rank = rank
        self._world = world
        self._wanted = wanted
        # The disk that the copies go to is not the checkpoint's fault.
        self.failure: OSError | None = None

    def load(self, found: Found) -> tuple[Found, Path]:
        """A folder with the files. CorruptCheckpoint or StoreError if they are not what was committed."""
        writers = require_manifest(found).world
        wanted = self._rank if self._wanted is None else self._wanted
        if wanted >= writers or (self._wanted is None and writers != self._world):
            raise IncompatibleState(
                f"{found.name} in {self._store.where} has the files of {writers} rank(s), and this is rank"
                f" {self._rank} of {self._world}",
                hint=f"say whose files to give: rank=0 to rank={writers - 1}",
            )
        folder, self.failure = self._scratch.make(), None
        try:
            for writer in {wanted, *range(self._rank, writers, self._world)}:
                for file in self._files_of(found, writer):
                    self._check(found, file, folder if writer == wanted else None)
            _make_read_only(folder)
        except BaseException:
            self._scratch.remove(folder)
            raise
        return found, folder

    def _files_of(self, found: Found, writer: int) -> list[StoredOutput]:
        manifest = require_manifest(found)
        records = {record.name: record for record in manifest.files}
        if manifest.world == 1:
            return stored_files(manifest.values, records)
        name = record_name(writer)
        if name not in records:
            raise CorruptCheckpoint(f"{found.name} in {self._store.where} lacks the record of rank {writer}")
        said = parse_rank_record(bytes(read_files(self._store, found, [name])[name]))
        return stored_files(said.values, records)

    def _check(self, found: Found, file: StoredOutput, folder: Path | None) -> None:
        if folder is None or self.failure is not None:
            self._pass_over(found, file.record, None)
            return
        path = folder / file.path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                self._pass_over(found, file.record, target)
            finally:
                os.close(target)
            os.chmod(path, file.mode & 0o555)
            os.utime(path, ns=(file.mtime_ns, file.mtime_ns))
        except OSError as error:
            self.failure = error

    def _pass_over(self, found: Found, record: FileRecord, target: int | None) -> None:
        with open_verified(self._store, found, record) as stored:
            for chunk in stored.chunks():
                if target is not None:
                    _write_all(target, chunk)


def _write_all(target: int, data: memoryview) -> None:
    while data:
        data = data[os.write(target, data) :]


def _make_read_only(folder: Path) -> None:
    for inside, _, _ in os.walk(folder, topdown=False):
        os.chmod(inside, 0o555)
